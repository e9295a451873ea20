"""A slow, obvious replay buffer: a dict of slots. What the library's must equal after every step."""

import copy
import math


class Twin:
    """One ring with generations, counts and a sample budget. ``ratio`` is a Fraction, or None without a limit."""

    def __init__(self, capacity: int, ratio=None):
        self.capacity, self.ratio = capacity, ratio
        self.records, self.generations = {}, {}
        self.cursor = self.written = self.extent = self.calls = self.returned = 0

    def extend(self, values) -> list[int]:
        return [self._append(value) for value in values]

    def _append(self, value) -> int:
        slot = self.cursor % self.capacity
        self.cursor += 1
        self._put(slot, value)
        return slot

    def write_at(self, slots, values) -> None:
        for slot, value in zip(slots, values, strict=True):
            self._put(slot, value)

    def _put(self, slot: int, value) -> None:
        self.records[slot] = value
        self.generations[slot] = self.generations.get(slot, -1) + 1
        self.extent = max(self.extent, slot + 1)
        self.written += 1

    def empty(self, zero: bool) -> None:
        self.records = {}
        self.generations = {slot: generation + 1 for slot, generation in self.generations.items()}
        self.cursor = self.extent = 0
        if zero:
            self.written = self.calls = self.returned = 0

    def budget(self):
        return math.inf if self.ratio is None else math.floor(self.written * self.ratio) - self.returned

    def may_sample(self, n: int) -> bool:
        return bool(self.records) and self.budget() >= n

    def sampled(self, n: int) -> None:
        self.calls += 1
        self.returned += n

    def saved(self) -> "Twin":
        return copy.deepcopy(self)

    def load(self, saved: "Twin") -> None:
        mine = self.generations
        for name in ("records", "cursor", "written", "extent", "calls", "returned", "ratio"):
            setattr(self, name, copy.deepcopy(getattr(saved, name)))
        self.generations = {
            slot: max(saved.generations.get(slot, -1), mine[slot] + 1 if slot in mine else -1)
            for slot in mine.keys() | saved.generations.keys()
        }
