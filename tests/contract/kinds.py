"""The kinds of storage that every contract is held against, and how a test looks at the whole shared state."""

import threading

import torch
from tensordict import TensorDict

import shmreplay as sr
from shmreplay.shm import table


class Kind:
    """One kind: how its storage is made, and whether it is shared."""

    shared = False
    fixed_layout = True  # the first write decides what later ones may be

    def storage(self, capacity: int):
        raise NotImplementedError

    def buffer(self, capacity: int = 6, cls=sr.TensorDictReplayBuffer, *, track: bool = True, **options):
        writer = sr.TensorDictRoundRobinWriter if cls is sr.TensorDictReplayBuffer else sr.RoundRobinWriter
        options.setdefault("writer", writer(track_generations=track))
        return cls(storage=self.storage(capacity), shared=self.shared, **options)

    def plain(self, capacity: int = 6, **options):
        return self.buffer(capacity, sr.ReplayBuffer, **options)

    def limited(self, capacity: int = 6, ratio=1.0, **options):
        return self.buffer(capacity, sr.RateLimitedReplayBuffer, samples_per_insert=ratio, **options)


class Tensor(Kind):
    def storage(self, capacity):
        return sr.LazyTensorStorage(capacity)


class Memmap(Kind):
    def storage(self, capacity):
        return sr.LazyMemmapStorage(capacity)


class Listed(Kind):
    fixed_layout = False

    def storage(self, capacity):
        return sr.ListStorage(capacity)


class SharedTensor(Tensor):
    shared = True


class SharedMemmap(Memmap):
    shared = True


KINDS = [Tensor, Memmap, Listed, SharedTensor, SharedMemmap]


def each_kind(contract, namespace: dict) -> None:
    """Put one test class for each kind of storage into a module."""
    for kind in KINDS:
        name = f"Test{kind.__name__}{contract.__name__.removesuffix('Contract')}"
        namespace[name] = type(name, (contract, kind), {"__module__": namespace["__name__"]})


def state_bytes(buffer) -> tuple:
    """Every shared byte that a call could change: counters, members, journal, queues, ledgers, stamps."""
    segment = buffer.storage.segment
    ledgers = table.LEDGERS + 2 * table.LEDGER_NBYTES
    return (
        segment.control[: table.LOCK].tobytes(),
        segment.control[table.OP : table.UNDO].tobytes(),
        segment.control[table.MEMBERS : ledgers].tobytes(),
        segment.stamps.tobytes(),
    )


def observed(buffer) -> tuple:
    """What a user can see, records included."""
    capacity = buffer.storage.max_size
    data = buffer[:]["x"].tolist() if len(buffer) else []
    stats = {key: value for key, value in buffer.stats().items() if key not in ("recovered", "live_members")}
    return (len(buffer), buffer.write_count, generations(buffer, capacity), data, stats)


def generations(buffer, n: int) -> list[int]:
    return buffer.writer.generations_of(torch.arange(n)).tolist()


def batch(low: int, high: int) -> TensorDict:
    """Records with a nested key; the fields agree."""
    x = torch.arange(low, high)
    wide = x[:, None].expand(-1, 400).to(torch.float32).clone()  # a column of its own
    return TensorDict({"x": x, "n": {"y": x.clone()}, "wide": wide}, [high - low])


def check_agreement(sample) -> None:
    assert (sample["x"] == sample["n", "y"]).all() and (sample["wide"] == sample["x"][:, None]).all()


class Set:
    """A cancel event that is set."""

    @staticmethod
    def is_set() -> bool:
        return True


def cancel_after_first_look() -> threading.Event:
    """An event that becomes set once somebody has asked for it: the asker is in its wait then."""

    class Asked(threading.Event):
        def is_set(self):
            before = super().is_set()
            self.set()
            return before

    return Asked()
