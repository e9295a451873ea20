"""ListStorage: Python objects, whatever they are."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shmreplay import ListStorage, ReplayBuffer
from shmreplay.storages.list import collate_list


def test_any_object_is_kept_in_order():
    buffer = ReplayBuffer(storage=ListStorage(3), batch_size=4)
    assert buffer.extend(["a", "b", None, {1}]).tolist() == [0, 1, 2, 0]
    assert buffer[:] == [{1}, "b", None] and buffer.storage[:] == [{1}, "b", None]
    data, info = buffer.sample(return_info=True)
    assert data == [[{1}, "b", None][i] for i in info["index"]]


def test_a_record_that_is_a_list_stays_one():
    buffer = ReplayBuffer(storage=ListStorage(3))
    record = [torch.zeros(2), torch.ones(2)]
    buffer.add(record)
    found = buffer[0]
    assert isinstance(found, list) and len(found) == 2 and (found[1] == 1).all()
    assert [column.shape for column in buffer[:]] == [(1, 2), (1, 2)]


def test_records_of_any_shape():
    buffer = ReplayBuffer(storage=ListStorage(3), collate_fn=list)
    buffer.add(torch.zeros(2))
    buffer.add(torch.zeros(3))
    assert [record.numel() for record in buffer.storage] == [2, 3]


@pytest.mark.parametrize("data", [[], torch.zeros(0), TensorDict({"a": torch.zeros(0)}, [0]), torch.tensor(1), {}])
def test_nothing_to_write(data):
    buffer = ReplayBuffer(storage=ListStorage(3))
    with pytest.raises(RuntimeError, match="Expected at least one element in extend"):
        buffer.extend(data)
    assert buffer.write_count == 0


def test_uneven_leaves_are_refused():
    buffer = ReplayBuffer(storage=ListStorage(3))
    with pytest.raises(TypeError, match="one length"):
        buffer.extend({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(TypeError, match="one length"):
        buffer.extend({"a": torch.zeros(2), "b": 3})
    assert buffer.write_count == 0


def test_copies_go_in_and_out():
    buffer = ReplayBuffer(storage=ListStorage(3))
    given = {"a": np.zeros(2), "t": (torch.zeros(2), [1])}
    buffer.add(given)
    given["a"][0] = given["t"][0][0] = 5
    found = buffer[0]
    assert not found["a"].any() and not found["t"][0].any() and found["t"][1] == [1]
    found["a"][0] = found["t"][0][0] = 7
    assert not buffer[0]["a"].any() and not buffer[0]["t"][0].any()


def test_collate():
    assert collate_list([1, 2]).tolist() == [1, 2]
    assert collate_list([1.5, 2.0]).dtype == torch.float64
    assert collate_list([True, False]).dtype == torch.bool
    assert collate_list([np.float32(1), np.float32(2)]).dtype == torch.float32
    assert collate_list([np.zeros(2), np.ones(2)]).tolist() == [[0, 0], [1, 1]]
    assert collate_list(["a", "b"]) == ["a", "b"] and collate_list([]) == []
    nested = collate_list([{"a": (1, torch.tensor([2]))}, {"a": (3, torch.tensor([4]))}])
    assert nested["a"][0].tolist() == [1, 3] and nested["a"][1].tolist() == [[2], [4]]
    stacked = collate_list([TensorDict({"a": torch.tensor(i)}) for i in range(3)])
    assert stacked.batch_size == (3,) and stacked["a"].tolist() == [0, 1, 2]
