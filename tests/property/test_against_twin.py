"""Random sequences of calls on a buffer and on its slow twin; everything is compared after each step."""

import copy
import pickle
import random
from fractions import Fraction

import pytest
import torch
from tensordict import TensorDict
from twin import Twin

import shmreplay as sr

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")
KINDS = {"tensor": sr.LazyTensorStorage, "memmap": sr.LazyMemmapStorage, "list": sr.ListStorage}


def records(values) -> TensorDict:
    x = torch.tensor(values, dtype=torch.int64)
    return TensorDict({"x": x, "n": {"y": -x}, "wide": x[:, None].expand(-1, 200).double()}, [len(values)])


class Pair:
    """A buffer and its twin, stepped together."""

    def __init__(self, rng: random.Random, kind: str, capacity: int, ratio):
        self.rng, self.kind, self.next_value, self.saves = rng, kind, 0, []
        self.twin = Twin(capacity, None if ratio is None else Fraction(ratio))
        self.buffer = sr.TensorDictReplayBuffer(
            storage=KINDS[kind](capacity),
            writer=sr.TensorDictRoundRobinWriter(track_generations=True),
            samples_per_insert=ratio,
        )

    def values(self, n: int) -> list[int]:
        self.next_value += n
        return list(range(self.next_value - n, self.next_value))

    def add(self):
        value = self.values(1)
        assert [self.buffer.add(records(value)[0])] == self.twin.extend(value)

    def extend(self):
        values = self.values(self.rng.choice([1, 2, 3, 5, self.twin.capacity, 2 * self.twin.capacity + 1]))
        assert self.buffer.extend(records(values)).tolist() == self.twin.extend(values)

    def write_at(self):
        n = self.rng.randint(1, min(6, 2 * self.twin.capacity))
        slots, values = [self.rng.randrange(self.twin.capacity) for _ in range(n)], self.values(n)
        self.buffer.writer.write_at(torch.tensor(slots), records(values))
        self.twin.write_at(slots, values)

    def refused(self):
        bad = self.rng.choice(["dtype", "slot"])
        if bad == "slot" or self.kind == "list" or not self.twin.generations:
            with pytest.raises(IndexError):
                self.buffer.writer.write_at(torch.tensor([self.twin.capacity]), records([0]))
        else:
            with pytest.raises(ValueError):
                self.buffer.extend(records([0, 1]).apply(lambda leaf: leaf.float()))

    def empty(self):
        zero = self.rng.random() < 0.5
        self.buffer.empty(zero)
        self.twin.empty(zero)

    def sample(self):
        n, twin = self.rng.randint(1, 8), self.twin
        assert self.buffer.can_sample(n) == twin.may_sample(n)
        if not twin.may_sample(n):
            with pytest.raises(RuntimeError):
                self.buffer.sample(n)
            return
        found = self.buffer.sample(n)
        twin.sampled(n)
        slots = found["index"].tolist()
        assert found["x"].tolist() == [twin.records[slot] for slot in slots]
        assert found["index_generation"].tolist() == [twin.generations[slot] for slot in slots]
        assert (found["n", "y"] == -found["x"]).all() and (found["wide"] == found["x"][:, None]).all()

    def save(self):
        self.saves.append((self.buffer.state_dict(), self.twin.saved()))

    def load(self):
        if self.saves:
            state, twin = self.rng.choice(self.saves)
            self.buffer.load_state_dict(state)
            self.twin.load(twin)

    def into_another(self):
        """Go on with a copy; an earlier handle of the original must not matter."""
        way = self.rng.choice(["deepcopy", "pickle", "state_dict"])
        if way == "deepcopy":
            self.buffer = copy.deepcopy(self.buffer)
        elif way == "pickle":
            self.buffer = pickle.loads(pickle.dumps(self.buffer))
        else:
            ratio = self.twin.ratio
            other = Pair(self.rng, self.kind, self.twin.capacity, ratio)
            other.buffer.load_state_dict(self.buffer.state_dict())
            self.buffer = other.buffer

    def share(self):
        if self.kind != "list":
            self.buffer.share(self.rng.random() < 0.7)

    def change_ratio(self):
        ratio = Fraction(self.rng.choice([1, 2, 5, 9]), self.rng.choice([1, 2, 3]))
        if self.twin.ratio is not None and self.twin.written * ratio >= self.twin.returned:
            self.twin.ratio = self.buffer.samples_per_insert = ratio

    def compare(self):
        buffer, twin = self.buffer, self.twin
        buffer._storage.state.check_valid()
        stats = buffer.stats()
        assert len(buffer) == len(twin.records) == stats["size"] and buffer.write_count == twin.written
        assert stats["storage_size"] == twin.extent and buffer.storage.cursor == twin.cursor % twin.capacity
        assert (stats["sample_calls"], stats["samples_returned"]) == (twin.calls, twin.returned)
        if twin.ratio is not None:
            assert stats["sample_budget"] == twin.budget() and stats["reserved_samples"] == 0
        every = torch.arange(-1, twin.capacity + 1)
        expected = [twin.generations.get(slot, -1) for slot in every.tolist()]
        assert buffer.writer.generations_of(every).tolist() == expected
        assert [slot in buffer.storage for slot in range(twin.capacity)] == [s in twin.records for s in range(twin.capacity)]
        if twin.records:
            assert buffer[:]["x"].tolist() == [twin.records[slot] for slot in sorted(twin.records)]
            slot = self.rng.choice(sorted(twin.records))
            assert buffer[slot]["x"] == twin.records[slot] == -buffer[slot]["n", "y"]


STEPS = [Pair.add] * 3 + [Pair.extend] * 6 + [Pair.write_at] * 3 + [Pair.sample] * 6 + [Pair.refused] + [Pair.empty]
STEPS += [Pair.save, Pair.load, Pair.into_another, Pair.share, Pair.change_ratio]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [None, Fraction(1, 3), 1, 2.5])
@pytest.mark.parametrize("capacity", [1, 2, 7, 16])
def test_random_calls(kind, ratio, capacity):
    for seed in range(2):
        rng = random.Random(f"{kind} {ratio} {capacity} {seed}")
        pair = Pair(rng, kind, capacity, ratio)
        for _ in range(60):
            step = rng.choice(STEPS)
            step(pair)
            pair.compare()


def test_random_calls_on_a_ring_that_claims_in_steps():
    for seed in range(3):
        rng = random.Random(seed)
        pair = Pair(rng, "tensor", 3001, 2)
        pair.buffer.share()
        for _ in range(40):
            rng.choice([Pair.extend, Pair.extend, Pair.write_at, Pair.sample, Pair.empty, Pair.save, Pair.load])(pair)
            pair.compare()
