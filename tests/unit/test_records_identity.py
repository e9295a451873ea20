"""Which layouts are the same, how they travel, how fields are found; and the examples in the docstrings."""

from __future__ import annotations

import doctest
import importlib
import pickle

import pytest
import torch
from tensordict import TensorDict

from shmreplay.records import RecordLayout


def test_digest_does_not_depend_on_insertion_order():
    one = TensorDict({"a": torch.zeros(2, 3), "b": {"x": torch.zeros(2), "y": torch.ones(2)}}, [2])
    two = TensorDict({"b": {"y": torch.ones(2), "x": torch.zeros(2)}, "a": torch.zeros(2, 3)}, [2])
    first, second = (RecordLayout.of(data, batched=True) for data in (one, two))
    assert first == second and len({first, second}) == 1 and first.fields == second.fields
    assert first.stage(one, batched=True).rows.tobytes() == second.stage(two, batched=True).rows.tobytes()
    assert list(second.build(second.allocate(1)).keys()) == ["b", "a"]


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(3), "b": torch.zeros(())},
        {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(())},
        {"a": torch.zeros(2), "c": torch.zeros(())},
        TensorDict({"a": torch.zeros(2), "b": torch.zeros(())}),
        (torch.zeros(2), torch.zeros(())),
        [torch.zeros(2), torch.zeros(())],
    ],
)
def test_digest_tells_records_apart(other):
    layout = RecordLayout.of({"a": torch.zeros(2), "b": torch.zeros(())}, batched=False)
    assert layout != RecordLayout.of(other, batched=False) and layout != "layout"


def test_pickle():
    layout = RecordLayout.of(TensorDict({"a": torch.zeros(2, 3)}, [2]), batched=True)
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_field_index():
    layout = RecordLayout.of(TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2)}}), batched=False)
    assert layout.fields[layout.field_index("a")].key == ("a",)
    assert layout.field_index(("n", "b")) == layout.field_index(("n", ("b",))) == 1
    with pytest.raises(KeyError, match="'a'"):
        layout.field_index("z")


@pytest.mark.parametrize("name", ["layout", "staging", "building", "packing", "tree", "dtypes", "assembly"])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"shmreplay.records.{name}")).failed == 0
