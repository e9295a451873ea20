"""Reads that never mix two records: stamps before and after the gather, then again, then under a pin."""

import time

import numpy as np
import torch

from ..errors import BudgetError, ShmReplayError
from ..shm.points import point
from ..shm.table import LIST_SLOTS, W_CLAIMED, W_EPOCH, W_EXTENT, W_LEN
from ..state.ring import Write
from ..state.stamps import all_whole, whole

_PASSES = 3
_PATIENCE = 0.1  # seconds that a read without a deadline waits for a record to be whole


class PassedError(ShmReplayError, RuntimeError):
    """A sample whose epoch passed under it; the buffer asks again."""


class Reading:
    """The reading half of a storage: needs ``ring``, ``max_size`` and the gathers of the kind of storage."""

    def read(self, slots: np.ndarray, redraw, chunk=None) -> tuple:
        """Gather whole records, into ``chunk`` if given: (chunk, slots, generations, epoch), all private.

        A row that was being written before or while it was gathered is drawn again with ``redraw(k)`` and gathered
        alone; after three passes what is left is read under a pin, fair with waiting writers.

        Raises:
            BudgetError: no record is there, and none came (100 ms, or the calling thread's deadline).
        """
        ring = self.ring
        epoch = ring.words[W_EPOCH]
        before = ring.stamps.take(slots)
        chunk = self._gather(slots, chunk)
        point("shmreplay.gathered")
        ring.fence()
        after = ring.stamps.take(slots)
        if not (before.tobytes() == after.tobytes() and all_whole(before, epoch)):
            slots, before = slots.copy(), before.copy()
            self._read_again(chunk, slots, before, after, epoch, redraw)
        return chunk, slots, before[:, 1] - 1, epoch

    def draw_whole(self, n: int) -> np.ndarray:
        """Slots drawn uniformly; among those that hold a record, where few do and blind draws would miss them."""
        ring = self.ring
        epoch, extent = ring.words[W_EPOCH], ring.words[W_EXTENT]
        if 4 * ring.words[W_LEN] < extent:
            there = np.flatnonzero(whole(ring.stamps.take(np.arange(extent)), epoch))
            if there.size:
                return there[torch.randint(0, there.size, (n,), generator=self._generator()).numpy()]
        return self._rand_given_ndim(n).numpy()

    def _read_again(self, chunk, slots, before, after, epoch: int, redraw) -> None:
        """Replace, in place, the rows that were not whole from before to after the gather."""
        stamps = self.ring.stamps
        bad = np.flatnonzero(~whole(before, epoch) | (before != after).any(1))
        for _ in range(_PASSES):
            if not bad.size:
                return
            drawn = redraw(bad.size)
            rows = stamps.take(drawn)
            self._regather(chunk, bad, drawn)
            self.ring.fence()
            good = whole(rows, epoch) & (rows == stamps.take(drawn)).all(1)
            slots[bad], before[bad] = drawn, rows
            bad = bad[~good]
        if bad.size:
            self._read_pinned(chunk, bad, slots, before, epoch, redraw)

    def _read_pinned(self, chunk, bad, slots, before, epoch: int, redraw) -> None:
        ring, limits = self.ring, self.ring.limits.call
        give_up = limits.deadline if limits.deadline is not None else time.monotonic() + _PATIENCE
        while bad.size:
            write = Write(min(bad.size, LIST_SLOTS, ring.quarter))
            n = ring.guarded(write, lambda: self._fill_pinned(write, chunk, bad, slots, before, epoch, redraw))
            bad = bad[n:]
            if n:
                continue
            if time.monotonic() > give_up:
                raise BudgetError(
                    "Cannot sample: no whole record was found in the storage, "
                    f"{ring.words[W_LEN]} are there and others are being written. Pass wait=True to wait."
                )
            ring.check_limits("Replay buffer found no whole record")
            time.sleep(0.0005)

    def _fill_pinned(self, write: Write, chunk, bad, slots, before, epoch: int, redraw) -> int:
        """Pin as many whole records as can be, read them to the first positions of ``bad``; returns how many."""
        ring = self.ring
        pinned = ring.pin(write, redraw(4 * write.n + 16))
        if ring.words[W_EPOCH] != epoch:
            raise PassedError("the replay buffer was emptied while it was sampled")
        if pinned.size:
            at = bad[: pinned.size]
            slots[at], before[at] = pinned, ring.stamps.take(pinned)
            self._regather(chunk, at, pinned)
        return pinned.size

    def read_whole(self, slots: np.ndarray) -> tuple:
        """The whole records among ``slots``, in their order: (chunk, slots). Holes are left out."""
        ring = self.ring
        epoch, claimed = ring.words[W_EPOCH], ring.words[W_CLAIMED]
        if slots.size and slots.max() >= claimed:  # reading what is not claimed may be SIGBUS
            slots = slots[slots < claimed]
        before = ring.stamps.take(slots)
        there = whole(before, epoch)
        if not there.all():
            slots, before = slots[there], before[there]
        chunk = self._gather(slots)
        ring.fence()
        bad = np.flatnonzero((before != ring.stamps.take(slots)).any(1))
        gone = self._read_same(chunk, slots, bad)
        if gone.size:
            kept = np.setdiff1d(np.arange(slots.size), gone)
            chunk, slots = self._keep(chunk, kept), slots[kept]
        return chunk, slots

    def _read_same(self, chunk, slots, bad: np.ndarray) -> np.ndarray:
        """Gather the positions ``bad`` again, pinned; returns those whose record is gone."""
        ring, gone = self.ring, []
        limit = min(LIST_SLOTS, ring.quarter)
        for start in range(0, bad.size, limit):
            at = bad[start : start + limit]
            write = Write(at.size)
            gone.append(ring.guarded(write, lambda: self._fill_same(write, chunk, at, slots)))
        return np.concatenate(gone) if gone else np.empty(0, np.int64)

    def _fill_same(self, write: Write, chunk, at: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Pin the slots at positions ``at`` and read them again; returns the positions without a record."""
        hit = np.isin(slots[at], self.ring.pin(write, np.unique(slots[at])))
        if hit.any():
            self._regather(chunk, at[hit], slots[at[hit]])
        return at[~hit]

    def read_exactly(self, slots: np.ndarray):
        """The records of ``slots``, one row each, as a chunk.

        Raises:
            IndexError: a slot holds no record (never written, emptied, or given up by its writer), or is out of range.
        """
        if slots.size and (slots.min() < 0 or slots.max() >= self.max_size):
            raise IndexError(f"index is out of bounds: the storage has slots 0 to {self.max_size - 1}")
        give_up = time.monotonic() + _PATIENCE
        while True:
            chunk, found = self.read_whole(slots)
            if found.size == slots.size:
                return chunk
            if time.monotonic() > give_up or not self.ring.words[W_LEN]:
                missing = np.setdiff1d(slots, found)
                raise IndexError(
                    f"index is out of bounds: no record in slots {missing[:8].tolist()} (never written, emptied or "
                    "abandoned)"
                )
            time.sleep(0.0005)
