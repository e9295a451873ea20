"""What is written into the buffer: n-step records that carry collector, sequence and a checksum over their bytes."""

import collections
from collections.abc import Iterator

import numpy as np
import torch
from tensordict import TensorDict

FIELDS = {
    "observation": (np.float32, (4,)),
    "action": (np.int64, ()),
    "reward": (np.float32, ()),
    "next_observation": (np.float32, (4,)),
    "discount": (np.float32, ()),
    "collector": (np.int64, ()),
    "sequence": (np.int64, ()),
}
_WORDS = sum(np.dtype(kind).itemsize // 4 * int(np.prod(shape)) for kind, shape in FIELDS.values())
# Odd, so that a change of any single word always changes the sum; one a word, so that swapped words do too.
_FACTORS = np.random.default_rng(20_26).integers(1, 2**63, _WORDS, dtype=np.uint64) | np.uint64(1)
_START = np.uint64(0x9E3779B97F4A7C15)


def checksums(fields: dict[str, np.ndarray]) -> np.ndarray:
    """Returns one int64 a record, computed from every byte of its `FIELDS`.

    Args:
        fields: name to array of shape `[n, ...]`, in the dtypes of `FIELDS`; other names are ignored.
    """
    words = [np.ascontiguousarray(fields[name]).view(np.uint32).reshape(len(fields[name]), -1) for name in FIELDS]
    products = np.concatenate(words, axis=1).astype(np.uint64) * _FACTORS
    total = products.sum(axis=1, dtype=np.uint64) + _START
    return (total ^ (total >> np.uint64(31))).view(np.int64)


def torn(batch: TensorDict) -> int:
    """Returns how many records of a batch do not match their checksum."""
    fields = {name: batch[name].numpy() for name in (*FIELDS, "checksum")}
    return int(np.count_nonzero(checksums(fields) != fields["checksum"]))


class NStep:
    """Folds single steps of one environment into n-step records. Local to one collector."""

    def __init__(self, length: int, gamma: float) -> None:
        self._length = length
        self._gamma = gamma
        self._steps: collections.deque[tuple[np.ndarray, int, float]] = collections.deque()

    def push(
        self, before: np.ndarray, action: int, reward: float, after: np.ndarray, *, terminated: bool, truncated: bool
    ) -> Iterator[tuple]:
        """Takes a step and yields the records that it completes, as values of the first five `FIELDS`.

        An ended episode is flushed with shorter records; a truncated one still counts on the value of its last state.
        """
        self._steps.append((before, action, reward))
        ended = terminated or truncated
        while self._steps and (ended or len(self._steps) == self._length):
            rewards = [step[2] for step in self._steps]
            folded = sum(self._gamma**k * value for k, value in enumerate(rewards))
            discount = 0.0 if terminated else self._gamma ** len(rewards)
            first, first_action, _ = self._steps.popleft()
            yield first, first_action, folded, after, discount


class Batcher:
    """Gathers records of one collector into TensorDicts of a fixed size, numbered and with checksums."""

    def __init__(self, size: int, collector: int) -> None:
        self._size = size
        self._collector = collector
        self._rows: list[tuple] = []
        self._sequence = 0

    def add(self, row: tuple) -> TensorDict | None:
        """Takes one record; returns `size` of them once there are so many, else None."""
        self._rows.append((*row, self._collector, self._sequence))
        self._sequence += 1
        if len(self._rows) < self._size:
            return None
        columns = zip(*self._rows)
        fields = {name: np.array(column, dtype=FIELDS[name][0]) for name, column in zip(FIELDS, columns)}
        fields["checksum"] = checksums(fields)
        self._rows.clear()
        return TensorDict({name: torch.from_numpy(field) for name, field in fields.items()}, [self._size])
