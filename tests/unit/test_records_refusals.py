"""What records refuse: each with a message that names the key, and nothing changed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass

from shmreplay.errors import LayoutError, LayoutKeyError, LayoutTypeError, ShmReplayError
from shmreplay.records import RecordLayout


@tensorclass
class Step:
    obs: torch.Tensor
    reward: torch.Tensor


def w1(n: int) -> TensorDict:
    source = {"obs": torch.randn(n, 17), "next_obs": torch.randn(n, 17), "action": torch.randn(n, 6)}
    return TensorDict({**source, "reward": torch.randn(n, 1), "done": torch.rand(n, 1) > 0.5}, [n])


def staged_bytes(layout: RecordLayout, data: TensorDict) -> list[bytes]:
    staged = layout.stage(data, batched=True)
    return [part.tobytes() for part in (staged.rows, *staged.columns)]


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.update(version=2),
        lambda plain: plain.update(ignore="index"),
        lambda plain: plain.update(tree=None),
        lambda plain: plain.update(more=1),
        lambda plain: plain["tree"].update(form="set"),
        lambda plain: plain["tree"].update(keys=["a"]),
        lambda plain: plain["tree"].update(keys=["a", "a"]),
        lambda plain: plain["tree"].update(keys=["a", None]),
        lambda plain: plain["tree"].update(type="os:system"),
        lambda plain: plain["tree"].update(batch=[-1]),
        lambda plain: plain["tree"]["children"].__setitem__(0, ["float32", [1.5]]),
        lambda plain: plain["tree"]["children"].__setitem__(0, ["load", [1]]),
        lambda plain: plain["tree"]["children"].__setitem__(0, [[], [1]]),
    ],
)
def test_damaged_json_is_refused(change):
    layout = RecordLayout.of(TensorDict({"a": torch.zeros(1), "b": torch.zeros(1)}), batched=False)
    plain = json.loads(layout.to_json())
    change(plain)
    with pytest.raises((LayoutError, LayoutTypeError)):
        RecordLayout.from_json(json.dumps(plain))
    with pytest.raises(LayoutError, match="to_json"):
        RecordLayout.from_json("{")


@pytest.mark.parametrize("name", ["os:system", "no_such_module:X", "tests:nothing", "builtins:dict"])
def test_a_class_that_is_no_tensorclass_is_refused_at_the_first_build(name):
    plain = json.loads(RecordLayout.of(Step(torch.zeros(1), torch.zeros(1), batch_size=[]), batched=False).to_json())
    plain["tree"]["type"] = name
    layout = RecordLayout.from_json(json.dumps(plain))
    with pytest.raises(LayoutError, match="instances of"):
        layout.build(layout.allocate(1))


BASE = {"a": torch.zeros(3, 2), "n": {"b": torch.zeros(3, dtype=torch.int64)}, "big": torch.zeros(3, 400)}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda d: d.del_("a"), LayoutKeyError, ["Missing key 'a'", "'big'"]),
        (lambda d: d["n"].del_("b"), LayoutKeyError, ["Missing key ('n', 'b')"]),
        (lambda d: d.set("c", torch.zeros(3)), LayoutKeyError, ["Unexpected key 'c'"]),
        (lambda d: d["n"].set("c", torch.zeros(3)), LayoutKeyError, ["Unexpected key ('n', 'c')"]),
        (lambda d: d.set("a", torch.zeros(3, 1)), LayoutError, ["key 'a'", "(3, 2)", "(3, 1)"]),
        (lambda d: d.set("a", torch.zeros(3, 2, 1)), LayoutError, ["key 'a'", "(3, 2, 1)"]),
        (lambda d: d.set("big", torch.zeros(3, 401)), LayoutError, ["key 'big'", "401"]),
        (lambda d: d.set("big", torch.zeros(3, 400).double()), LayoutError, ["'big'", "float32", "float64"]),
        (lambda d: d.set(("n", "b"), torch.zeros(3)), LayoutError, ["('n', 'b')", "int64", ".to("]),
        (lambda d: d.set("a", {"x": torch.zeros(3, 2)}), LayoutTypeError, ["tensor under key 'a'", "TensorDict"]),
        (lambda d: d.set("n", torch.zeros(3)), LayoutTypeError, ["tensordict under key 'n'", "Tensor"]),
        (lambda d: d["n"].set("b", NonTensorData("s", batch_size=[3])), LayoutTypeError, ["NonTensorData", "('n'"]),
        (lambda d: d.set_non_tensor("a", "text"), LayoutTypeError, ["NonTensorData under key 'a' cannot be stored"]),
    ],
)
def test_data_that_does_not_fit(change, error, words):
    layout = RecordLayout.of(TensorDict(BASE, [3]), batched=True)
    before = staged_bytes(layout, TensorDict(BASE, [3]))
    data = TensorDict(BASE, [3]).clone()
    change(data)
    with pytest.raises(error) as caught:
        layout.stage(data, batched=True)
    assert isinstance(caught.value, ShmReplayError)
    for word in words:
        assert word in str(caught.value)
    assert staged_bytes(layout, TensorDict(BASE, [3])) == before


def test_wrong_batching_says_what_to_call():
    layout = RecordLayout.of(w1(3), batched=True)
    with pytest.raises(LayoutError, match=r"batch: write it with extend\(\)"):
        layout.stage(w1(3), batched=False)
    with pytest.raises(LayoutError, match=r"add\(\)"):
        layout.stage(w1(3)[0], batched=True)
    plain = RecordLayout.of(torch.zeros(3, 4), batched=True)
    with pytest.raises(LayoutError, match=r"add\(\)"):
        plain.stage(torch.zeros(4, 4)[0], batched=True)
    pair = RecordLayout.of((torch.zeros(3), torch.zeros(3)), batched=True)
    with pytest.raises(LayoutError, match="length 3, found 2"):
        pair.stage((torch.zeros(3), torch.zeros(2)), batched=True)
    with pytest.raises(LayoutError, match="no batch dimension"):
        RecordLayout.of({"x": 3}, batched=True)
    with pytest.raises(LayoutError, match="unsqueeze"):
        RecordLayout.of(w1(3)[0], batched=True)


@pytest.mark.parametrize("data", [w1(0), torch.zeros(0, 17), {"a": torch.zeros(0)}])
def test_empty_batches(data):
    layout = RecordLayout.of(data, batched=True)
    for call in (layout.batch_size_of, lambda given: layout.stage(given, batched=True)):
        with pytest.raises(RuntimeError, match="Expected at least one element in extend. Got"):
            call(data)
    with pytest.raises(RuntimeError, match="Expected at least one element in extend. Got"):
        RecordLayout.stack([])


@pytest.mark.parametrize(
    "value",
    [
        "text",
        object(),
        None,
        b"bytes",
        {"x"},
        np.array(["s"]),
        np.array([None]),
        torch.eye(3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.empty(3, dtype=torch.bits8),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        NonTensorData("x"),
        {(1, 2): torch.zeros(3)},
        {True: torch.zeros(3)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored(value):
    with pytest.raises(LayoutTypeError, match=r"\('k', 'deep'\)"):
        RecordLayout.of({"k": {"deep": value}}, batched=False)


def test_nothing_to_store():
    for data in ({}, TensorDict({}, [3]), TensorDict({"index": torch.zeros(3)}, [3])):
        with pytest.raises(LayoutError, match="no tensor"):
            RecordLayout.of(data, batched=True, ignore=frozenset({"index"}))


def test_non_tensors_in_tensordicts_and_stacks():
    stack = NonTensorStack(NonTensorData("a"), NonTensorData("b"))
    with pytest.raises(LayoutTypeError, match="NonTensorData under key 's'"):
        RecordLayout.of(TensorDict({"s": stack, "x": torch.zeros(2)}, [2]), batched=True)
    lazy = lazy_stack([TensorDict({"s": "q"}), TensorDict({"s": "z"})])
    with pytest.raises(LayoutTypeError, match="NonTensorData under key 's'"):
        RecordLayout.of(lazy, batched=True)


def test_uneven_lazy_stacks_are_refused():
    shapes = lazy_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)})])
    with pytest.raises(LayoutError, match="key 'a'"):
        RecordLayout.of(shapes, batched=True)
    keys = lazy_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(2), "b": torch.zeros(1)})])
    with pytest.raises(LayoutKeyError, match="'b'"):
        RecordLayout.of(keys, batched=True)


def test_stack_names_the_record_that_differs():
    good = TensorDict({"a": torch.zeros(2)})
    with pytest.raises(LayoutError, match="Record 1 of 2.*key 'a'"):
        RecordLayout.stack([good, TensorDict({"a": torch.zeros(3)})])
    with pytest.raises(LayoutKeyError, match="Record 2 of 3.*key 'b'"):
        RecordLayout.stack([good, good, TensorDict({"a": torch.zeros(2), "b": torch.zeros(2)})])



def test_names_and_build_one_limits():
    layout = RecordLayout.of(w1(3), batched=True)
    assert layout.build(layout.allocate(2), names=["time"]).names == ["time"]
    with pytest.raises(LayoutError, match="one record, found 2"):
        layout.build_one(layout.allocate(2))
    plain = RecordLayout.of(torch.zeros(3), batched=True)
    with pytest.raises(LayoutTypeError, match="names"):
        plain.build(plain.allocate(2), names=["time"])
    assert layout.build(layout.allocate(0)).batch_size == (0,)
