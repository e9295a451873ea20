"""What every storage does."""

import collections
import gc
import os
import weakref

import pytest
import torch
from kinds import batch, check_agreement, each_kind, state_bytes
from tensordict import TensorDict, tensorclass
from torch.utils._pytree import tree_leaves, tree_map

import shmreplay as sr
from shmreplay.records.dtypes import _CARDS

Pair = collections.namedtuple("Pair", "left right")


@tensorclass
class Step:
    obs: torch.Tensor
    reward: torch.Tensor
    inner: TensorDict | None = None


def steps(low, high):
    x = torch.arange(low, high)
    inner = TensorDict({"z": x.clone()}, [high - low])
    return Step(obs=x[:, None].expand(-1, 3).clone(), reward=x.float(), inner=inner, batch_size=[high - low])


def random_bits(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    nbytes = dtype.itemsize
    raw = torch.randint(0, 256, (*shape, nbytes), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


STRUCTURES = {
    "tensor": lambda x: x[:, None].expand(-1, 3).clone(),
    "scalar": lambda x: x.clone(),
    "tuple": lambda x: (x.clone(), x.double()[:, None]),
    "named": lambda x: Pair(x.clone(), {"deep": x.float()}),
    "dict": lambda x: {"a": x.clone(), "b": {"c": (x.float(), [x.to(torch.int8)])}},
    "tensordict": lambda x: TensorDict({"a": x.clone(), ("b", "c"): x.float()}, [len(x)]),
}


class StorageContract:
    @pytest.mark.filterwarnings("ignore:ComplexHalf")
    @pytest.mark.parametrize("dtype", list(_CARDS), ids=str)
    def test_every_dtype_comes_back_bit_by_bit(self, dtype):
        buffer = self.buffer(4, batch_size=8)
        given = {"small": random_bits(dtype, (4, 3), 1), "large": random_bits(dtype, (4, 300, 5), 2)}
        buffer.extend(TensorDict(given, [4]))
        for found in (buffer[:], buffer[torch.arange(4)]):
            for key, value in given.items():
                assert found[key].dtype == dtype and found[key].shape == value.shape
                assert bits(found[key]) == bits(value)
        sample = buffer.sample()
        for key, value in given.items():
            rows = value.view(torch.uint8)[sample["index"]]  # not every dtype can be indexed
            assert sample[key].dtype == dtype and bits(sample[key]) == bits(rows)

    @pytest.mark.parametrize("name", STRUCTURES)
    def test_structures_come_back_as_they_were(self, name):
        make, buffer = STRUCTURES[name], self.plain(5, batch_size=7)
        assert buffer.extend(make(torch.arange(7))).tolist() == [0, 1, 2, 3, 4, 0, 1]
        there = torch.tensor([5, 6, 2, 3, 4])
        data, info = buffer.sample(return_info=True)
        self._check(data, make(there[info["index"]]))
        self._check(buffer[torch.tensor([4, 0])], make(torch.tensor([4, 5])))
        one = make(torch.tensor([2]))
        self._check(buffer[2], one[0] if name == "tensordict" else tree_map(lambda leaf: leaf[0], one))

    @staticmethod
    def _check(found, expected):
        if isinstance(expected, TensorDict):
            assert type(found) is TensorDict and found.batch_size == expected.batch_size
            found, expected = found.to_dict(), expected.to_dict()
        if not isinstance(expected, torch.Tensor):
            assert type(found) is type(expected)
        for left, right in zip(tree_leaves(found), tree_leaves(expected), strict=True):
            assert left.dtype == right.dtype and left.shape == right.shape and (left == right).all()

    def test_tensorclasses_keep_their_type(self):
        buffer = self.plain(4, batch_size=6)
        buffer.extend(steps(0, 6))
        for found in (buffer.sample(), buffer[:], buffer[torch.arange(4)]):
            assert type(found) is Step and type(found.inner) is TensorDict
            assert (found.obs[:, 0] == found.reward).all() and (found.inner["z"] == found.reward).all()
        assert type(buffer[0]) is Step and buffer[0].batch_size == torch.Size([])
        assert sorted(buffer[:].reward.tolist()) == [2, 3, 4, 5]

    def test_add_extend_and_lists_leave_the_same(self):
        one, many, listed = self.buffer(8), self.buffer(8), self.plain(8)
        for i in range(6):
            one.add(batch(i, i + 1)[0])
        many.extend(torch.stack([batch(i, i + 1)[0] for i in range(6)]))
        listed.extend([batch(i, i + 1)[0] for i in range(6)])
        for buffer in (one, many, listed):
            assert len(buffer) == buffer.write_count == 6 and buffer[:]["x"].tolist() == list(range(6))
            check_agreement(buffer[:])
            assert buffer.writer.generations_of(torch.arange(8)).tolist() == [0] * 6 + [-1] * 2

    @pytest.mark.parametrize(
        "index, expected",
        [
            (slice(None), [5, 1, 2, 3, 4]),
            (slice(1, 3), [1, 2]),
            (slice(None, None, 2), [5, 2, 4]),
            (slice(-2, None), [3, 4]),
            (slice(3, 99), [3, 4]),
            (slice(2, 2), []),
            (torch.tensor([4, 0, 0]), [4, 5, 5]),
            (torch.tensor([-1, -5]), [4, 5]),
            ([1, 2], [1, 2]),
            (range(2), [5, 1]),
            (torch.tensor([True, False, False, False, True]), [5, 4]),
            ((torch.tensor([3]),), [3]),
        ],
        ids=str,
    )
    def test_indexing(self, index, expected):
        buffer = self.buffer(5)
        buffer.extend(batch(0, 6))
        if expected or self.fixed_layout:
            assert buffer[index]["x"].tolist() == expected
            check_agreement(buffer[index])
        found = buffer.storage[index]
        assert len(found) == len(expected)
        assert [record["x"].item() for record in found] == expected if expected else True

    def test_single_records_and_fields(self):
        buffer = self.buffer(5)
        buffer.extend(batch(0, 3))
        for index in (1, -2, torch.tensor(1)):
            assert buffer[index].batch_size == torch.Size([]) and buffer[index]["x"] == 1 and buffer[index]["n", "y"] == 1
        assert buffer["x"].tolist() == [0, 1, 2] and buffer["n", "y"].tolist() == [0, 1, 2]

    @pytest.mark.parametrize("index", [3, 4, 5, 99, -4, -99, torch.tensor([0, 3]), torch.tensor([-4]), [0, 7]], ids=str)
    def test_no_record_there(self, index):
        buffer = self.buffer(5)
        buffer.extend(batch(0, 3))
        before = state_bytes(buffer)
        with pytest.raises(IndexError, match="out of bounds"):
            buffer[index]
        assert state_bytes(buffer) == before

    def test_membership_and_iteration(self):
        buffer = self.buffer(5)
        storage = buffer.storage
        assert len(storage) == 0 and list(storage) == [] and 0 not in storage
        buffer.extend(batch(0, 3))
        assert [i in storage for i in (-1, 0, 2, 3, 5)] == [False, True, True, False, False]
        assert [record["x"].item() for record in storage] == [0, 1, 2]
        assert len(storage) == 3 and storage.max_size == 5 and storage.shape == torch.Size([5])
        buffer.empty()
        assert list(storage) == [] and 0 not in storage

    def test_reads_are_private_and_contiguous(self):
        buffer = self.buffer(6, batch_size=6)
        buffer.extend(batch(0, 6))
        reads = [
            lambda: buffer.sample(),
            lambda: buffer.sample(return_info=True)[0],
            lambda: buffer[:],
            lambda: buffer[torch.arange(6)],
            lambda: buffer[1:5],
            lambda: buffer[2],
            lambda: buffer.storage[2],
        ]
        before = state_bytes(buffer)
        for read in reads:
            found = read()
            assert not found.is_locked
            for leaf in found.values(True, True):
                assert leaf.is_contiguous() and leaf.device.type == "cpu"
                leaf.fill_(-5)
            found.set("extra", torch.zeros(found.shape))
            assert buffer[:]["x"].tolist() == list(range(6)), "a read handed out live memory"
            check_agreement(buffer[:])
            assert set(buffer[:].keys()) == {"x", "n", "wide"}
        assert state_bytes(buffer)[-1] == before[-1]
        kept = buffer.sample()
        old = kept["x"].clone()
        buffer.extend(batch(50, 56))
        assert (kept["x"] == old).all()
        check_agreement(kept)

    def test_what_was_written_is_a_copy(self):
        buffer, given = self.buffer(6), batch(0, 4)
        buffer.extend(given)
        buffer.add(first := batch(4, 5)[0])
        given["x"].fill_(-1)
        first["x"].fill_(-1)
        assert buffer[:]["x"].tolist() == [0, 1, 2, 3, 4]
        assert set(given.keys()) == {"x", "n", "wide"}, "the caller's TensorDict was written to"

    @pytest.mark.parametrize("size", [0, -1])
    def test_sizes_below_one(self, size):
        with pytest.raises(ValueError, match="max_size"):
            self.storage(size)

    @pytest.mark.parametrize("size", [True, 2.5, "3", None])
    def test_what_is_no_size(self, size):
        with pytest.raises(TypeError, match="max_size"):
            self.storage(size)

    def test_capacity_one(self):
        buffer = self.buffer(1, batch_size=3)
        for i in range(4):
            assert buffer.add(batch(i, i + 1)[0]) == 0
            assert buffer.sample()["x"].tolist() == [i] * 3
        assert buffer.extend(batch(10, 15)).tolist() == [0] * 5
        assert len(buffer) == 1 and buffer.write_count == 9 and buffer[:]["x"].tolist() == [14]
        assert buffer.writer.generations_of(0).item() == 8
        buffer.storage.state.check_valid()

    def test_records_without_bytes(self):
        buffer = self.plain(4, batch_size=3)
        buffer.add(torch.zeros(0, 2))
        buffer.extend(torch.zeros(5, 0, 2))
        assert buffer.sample().shape == (3, 0, 2) and len(buffer) == 4 and buffer.write_count == 6

    def test_numpy_batches(self):
        buffer = self.plain(4, batch_size=3)
        assert buffer.extend(torch.arange(3).numpy()).tolist() == [0, 1, 2]
        assert buffer[:].tolist() == [0, 1, 2] and isinstance(buffer.sample(), torch.Tensor)

    def test_a_dropped_buffer_is_freed_at_once(self):
        buffer = self.buffer(6)
        buffer.extend(batch(0, 6))
        segment, path = weakref.ref(buffer.storage.segment), buffer.storage.segment.path
        gc.disable()
        try:
            del buffer
            assert segment() is None, "a cycle keeps the segment"
        finally:
            gc.enable()
        assert path is None or not os.path.exists(path)

    def test_a_read_before_the_first_write(self):
        buffer = self.buffer(4)
        with pytest.raises((RuntimeError, IndexError)):
            buffer[0]
        assert len(buffer) == 0 and not buffer.can_sample(1)


each_kind(StorageContract, globals())


def test_only_byte_storages_can_be_shared():
    buffer = sr.ReplayBuffer(storage=sr.ListStorage(4))
    buffer.extend(torch.arange(3))
    with pytest.raises(RuntimeError, match="Cannot share.*ListStorage(.|\n)*LazyTensorStorage"):
        buffer.share()
    assert not buffer.shared and buffer.path is None and buffer[:].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="ListStorage"):
        sr.ReplayBuffer(storage=sr.ListStorage(4), shared=True)


def test_the_default_storage():
    buffer = sr.ReplayBuffer()
    assert isinstance(buffer.storage, sr.ListStorage) and buffer.storage.max_size == 1000
