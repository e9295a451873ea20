"""The writers alone."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict

import shmreplay as sr


def test_tracking_is_off_by_default():
    for kind in (sr.RoundRobinWriter, sr.TensorDictRoundRobinWriter):
        assert not kind().tracks_generations and kind(track_generations=True).tracks_generations
        assert not kind(True).tracks_generations, "the first argument is compilable"
    assert not sr.Writer().tracks_generations


def test_a_writer_without_a_storage_knows_no_generation():
    for writer in (sr.RoundRobinWriter(track_generations=True), sr.RoundRobinWriter(), sr.Writer()):
        assert writer.generations_of(torch.tensor([[0, 3]])).tolist() == [[-1, -1]]
        assert writer.generations_of(0) == -1


def test_the_base_class_writes_nothing():
    with pytest.raises(NotImplementedError):
        sr.Writer().add(1)
    with pytest.raises(NotImplementedError):
        sr.Writer().extend([1])


def test_the_default_writers():
    assert type(sr.ReplayBuffer().writer) is sr.RoundRobinWriter
    assert type(sr.TensorDictReplayBuffer().writer) is sr.TensorDictRoundRobinWriter


def test_state_dict_of_a_writer():
    buffer = sr.ReplayBuffer(storage=sr.LazyTensorStorage(4), writer=sr.RoundRobinWriter(track_generations=True))
    buffer.extend(torch.arange(6))
    state = buffer.writer.state_dict()
    assert state["_cursor"] == 2 and state["_write_count"] == 6 and state["_generation"].tolist() == [1, 1, 0, 0]
    buffer.extend(torch.arange(2))
    assert state["_generation"].tolist() == [1, 1, 0, 0], "aliases live memory"


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_a_copied_writer_is_another_author(clone):
    buffer = sr.ReplayBuffer(storage=sr.LazyTensorStorage(8))
    buffer.extend(torch.arange(3))
    other = clone(buffer)
    other.extend(torch.arange(2))
    buffer.extend(torch.arange(2))
    assert other.writer is not buffer.writer and other.write_count == buffer.write_count == 5
    writer = clone(sr.RoundRobinWriter(track_generations=True))
    assert writer.tracks_generations


def test_two_writers_on_one_storage_are_told_apart():
    storage = sr.LazyTensorStorage(8)
    first, second = (sr.ReplayBuffer(storage=storage) for _ in range(2))
    for value in range(3):
        first.add(torch.tensor(value))
        second.add(torch.tensor(10 + value))
    assert first[:].tolist() == second[:].tolist() == [0, 10, 1, 11, 2, 12]
    stamps = storage.ring.stamps
    assert len(set(stamps.writer[:6].tolist())) == 2 and stamps.writer[0] == stamps.writer[2] != stamps.writer[1]
    assert stamps.previous[:6].tolist() == [0, 0, 1, 2, 3, 4], "the writer's own previous record, plus one"


def test_a_user_writer_calls_super():
    class Doubling(sr.TensorDictRoundRobinWriter):
        def extend(self, data):
            return super().extend(data.apply(lambda leaf: leaf * 2))

    buffer = sr.TensorDictReplayBuffer(storage=sr.LazyTensorStorage(4), writer=Doubling(track_generations=True), batch_size=2)
    buffer.extend(TensorDict({"a": torch.arange(3)}, [3]))
    assert buffer[:]["a"].tolist() == [0, 2, 4] and "index_generation" in buffer.sample().keys()


def test_parts_may_be_callables_and_nothing_else():
    made = sr.ReplayBuffer(storage=lambda: sr.LazyTensorStorage(3), sampler=sr.RandomSampler, writer=sr.RoundRobinWriter)
    assert made.storage.max_size == 3
    for name in ("storage", "sampler", "writer"):
        with pytest.raises(TypeError, match=f"{name} must be either a"):
            sr.ReplayBuffer(**{name: 3})
        with pytest.raises(TypeError, match=f"{name} must be either a"):
            sr.ReplayBuffer(**{name: lambda: 3})
