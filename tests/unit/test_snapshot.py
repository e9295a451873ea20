"""Snapshots in memory: what they hold, and what a load that fails leaves."""

import pytest
import torch

import shmreplay as sr

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def made(**options):
    options.setdefault("batch_size", 3)
    return sr.ReplayBuffer(
        storage=sr.LazyTensorStorage(6), writer=sr.RoundRobinWriter(track_generations=True), **options
    )


def test_the_keys_of_the_reference_are_there():
    buffer = made(samples_per_insert=2)
    buffer.extend(torch.arange(8))
    buffer.sample()
    state = buffer.state_dict()
    assert {"_storage", "_sampler", "_writer", "_transforms", "_batch_size", "_rng"} <= set(state)
    assert state["_storage"]["_storage"].tolist() == [6, 7, 2, 3, 4, 5] and state["_storage"]["_len"] == 6
    writer = state["_writer"]
    assert (writer["_cursor"], writer["_write_count"]) == (2, 8) and writer["_generation"].tolist() == [1, 1, 0, 0, 0, 0]
    assert (state["_sample_calls"], state["_sampled_items"]) == (1, 3) and state["_batch_size"] == 3
    assert state["_rate_limit"]["samples_per_insert"] == 2 and "_rate_limit" not in made().state_dict()


def test_the_random_stream_goes_on():
    buffer = made(generator=torch.Generator().manual_seed(4))
    buffer.extend(torch.arange(6))
    buffer.sample()
    state = buffer.state_dict()
    expected = [buffer.sample(20).tolist() for _ in range(3)]
    other = made()
    other.load_state_dict(state)
    assert [other.sample(20).tolist() for _ in range(3)] == expected


def test_batch_size_is_restored():
    other = made(batch_size=None)
    buffer = made(batch_size=5)
    buffer.extend(torch.arange(6))
    other.load_state_dict(buffer.state_dict())
    assert other.batch_size == 5 and len(other.sample()) == 5


def test_holes_stay_holes():
    buffer, other = made(), made()
    buffer.extend(torch.arange(2))
    buffer.writer.write_at(torch.tensor([4]), torch.tensor([40]))
    other.load_state_dict(buffer.state_dict())
    assert other[:].tolist() == [0, 1, 40] and other[4] == 40 and len(other) == 3
    assert other.writer.generations_of(torch.arange(6)).tolist() == [0, 0, -1, -1, 0, -1]
    with pytest.raises(IndexError):
        other[3]
    other.storage.state.check_valid()


def test_a_load_that_breaks_off_leaves_an_empty_buffer_that_works(monkeypatch):
    buffer = made(samples_per_insert=2)
    buffer.extend(torch.arange(8))
    state, before = buffer.state_dict(), buffer.writer.generations_of(torch.arange(6))

    def broken(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(buffer.storage, "_put", broken)
        with pytest.raises(KeyboardInterrupt):
            buffer.load_state_dict(state)
    assert len(buffer) == 0 and (buffer.writer.generations_of(torch.arange(6)) > before).all()
    buffer.storage.state.check_valid()
    assert buffer.extend(torch.arange(3)).numel() == 3 and buffer[:].tolist() == [0, 1, 2]
    buffer.load_state_dict(state)
    assert buffer[:].tolist() == [6, 7, 2, 3, 4, 5]


def test_writers_go_on_after_a_snapshot_that_fails(monkeypatch):
    buffer = made()
    buffer.extend(torch.arange(4))
    with monkeypatch.context() as patch:
        patch.setattr(buffer.storage, "read_whole", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            buffer.state_dict()
    assert buffer.extend(torch.arange(2), timeout=60).numel() == 2
