"""The samplers alone, and the random streams of one process."""

import collections

import pytest
import torch

import shmreplay as sr

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def filled(n=10, capacity=10, **options):
    buffer = sr.ReplayBuffer(storage=sr.LazyTensorStorage(capacity), batch_size=4, **options)
    buffer.extend(torch.arange(n))
    return buffer


def test_draws_are_uniform_over_what_was_written():
    torch.manual_seed(5)
    buffer = filled(8, 100)
    counts = torch.bincount(torch.cat([buffer.sample(1000) for _ in range(40)]), minlength=8)
    assert counts.numel() == 8
    expected = 40_000 / 8
    chi = ((counts - expected) ** 2 / expected).sum().item()
    assert chi < 24.3  # 7 degrees of freedom: 1 in 1,000


def test_slots_without_a_record_are_drawn_again_uniformly():
    torch.manual_seed(6)
    buffer = filled(4, 64)
    buffer.writer.write_at(torch.tensor([60]), torch.tensor([60]))
    counts = collections.Counter(torch.cat([buffer.sample(200) for _ in range(20)]).tolist())
    assert set(counts) == {0, 1, 2, 3, 60} and min(counts.values()) > 600


def test_one_record_in_a_large_ring_is_found():
    torch.manual_seed(8)
    buffer = filled(1, 50_000)
    buffer.writer.write_at(torch.tensor([49_990, 33_000]), torch.tensor([1, 2]))
    counts = collections.Counter(torch.cat([buffer.sample(300) for _ in range(5)]).tolist())
    assert set(counts) == {0, 1, 2} and min(counts.values()) > 400


def test_the_default_generator_is_torchs():
    buffer = filled()
    torch.manual_seed(3)
    first = buffer.sample()
    torch.manual_seed(3)
    assert (buffer.sample() == first).all()
    assert (buffer.sample() != first).any() or (buffer.sample() != first).any()


def test_a_generator_of_ones_own():
    generator = torch.Generator().manual_seed(1)
    buffer = filled(generator=generator)
    first = [buffer.sample() for _ in range(3)]
    generator.manual_seed(1)
    torch.manual_seed(99)
    assert all((buffer.sample() == batch).all() for batch in first)
    other = torch.Generator().manual_seed(1)
    buffer.set_rng(other)
    assert (buffer.sample() == first[0]).all()
    buffer.set_rng(None)
    torch.manual_seed(7)
    third = buffer.sample()
    torch.manual_seed(7)
    assert (buffer.sample() == third).all()


def test_an_empty_storage():
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        sr.RandomSampler().sample(sr.LazyTensorStorage(3), 2)
    assert not sr.RandomSampler().can_sample(sr.LazyTensorStorage(3), 2)


class Newest(sr.Sampler):
    """Returns the last slots, and an entry of its own."""

    def sample(self, storage, batch_size):
        return torch.arange(len(storage) - batch_size, len(storage)), {"mine": torch.ones(batch_size)}


def test_a_user_sampler():
    buffer = filled(sampler=Newest(), writer=sr.RoundRobinWriter(track_generations=True))
    data, info = buffer.sample(3, return_info=True)
    assert data.tolist() == [7, 8, 9] == info["index"].tolist()
    assert info["index_generation"].tolist() == [0] * 3 and info["mine"].tolist() == [1.0] * 3


def test_a_user_sampler_in_a_tensordict_buffer():
    from tensordict import TensorDict

    buffer = sr.TensorDictReplayBuffer(storage=sr.LazyTensorStorage(4), sampler=Newest(), batch_size=2)
    buffer.extend(TensorDict({"a": torch.arange(4)}, [4]))
    assert set(buffer.sample().keys()) == {"a", "index", "mine"}
    assert set(buffer.sample(include_info=False).keys()) == {"a"}


def test_slots_that_a_user_sampler_makes_up_never_come_out_as_records():
    class Wild(sr.Sampler):
        def sample(self, storage, batch_size):
            return torch.full((batch_size,), self.slot), {}

    buffer = filled(3, 10, sampler=Wild())
    for slot in (3, 9):  # in range, never written
        buffer.sampler.slot = slot
        with pytest.raises(RuntimeError, match="no whole record"):
            buffer.sample(2)
    for slot in (10, 10**6, -1):
        buffer.sampler.slot = slot
        with pytest.raises(IndexError, match="out of bounds"):
            buffer.sample(2)
    assert buffer.stats()["samples_returned"] == 0


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_a_sampler_that_draws_fewer_or_more_than_asked(ratio):
    class Unruly(sr.Sampler):
        def sample(self, storage, batch_size):
            return torch.arange(self.n), {}

    buffer = filled(8, 10, sampler=Unruly(), samples_per_insert=ratio)
    buffer.sampler.n = 2
    assert buffer.sample(4).tolist() == [0, 1] and buffer.stats()["samples_returned"] == 2
    buffer.sampler.n = 5
    with pytest.raises(ValueError, match="drew 5 records where 4"):
        buffer.sample(4)
    stats = buffer.stats()
    assert stats["samples_returned"] == 2 and stats.get("sample_budget", 6) == 6 and not stats.get("reserved_samples")


def test_the_base_class_draws_nothing():
    with pytest.raises(NotImplementedError):
        sr.Sampler().sample(None, 1)
