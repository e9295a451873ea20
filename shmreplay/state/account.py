"""The account of one ledger: ratio, budget, what was sampled by whom.

``budget = floor(inserted * ratio) - returned - reserved``, in integers: the ratio is a fraction. ``inserted`` is the
ring's WRITES, so all buffers on one storage count the same inserts.

Shared words (under the lock; saved by ``lock.begin``): the ratio (two pairs, and PAIR, which says the one that holds),
MIN_SIZE, MAX_AHEAD; RETURNED (limited buffers), RESERVED and ADMITTED (the sums of the open reservations of this
epoch), WAIT_COUNT, BASE_* (what the member counters showed at the last ``empty(True)``). Member counters: one row a
member, incremented by its process alone under an in-process lock, never reset; readers sum them, twice until equal.
"""

from fractions import Fraction

import numpy as np

from ..shm import table
from ..shm.lock import section
from ..shm.points import locked_point
from ..shm.table import (
    B_ADMITTED, B_BASE_CALLS, B_BASE_RETURNED, B_LIMITED, B_MAX_AHEAD, B_MIN_SIZE, B_PAIR, B_RATIOS, B_RESERVED,
    B_RETURNED, B_WAIT_COUNT, C_CALLS, C_RETURNED, C_WAITS, N_RESERVATIONS, W_EXTENT, W_LEN, W_WRITES,
)  # fmt: skip
from .queue import WaitQueue


class Account:
    """The words, rows, queues and counters of ledger number ``index``."""

    def __init__(self, ring, index: int):
        self.ring, self.segment, self.index = ring, ring.segment, index
        self.offset = table.LEDGERS + index * table.LEDGER_NBYTES
        at, words = self.offset >> 3, ring.segment.words
        self.words = words[at : at + table.N_WORDS]
        at = (self.offset + table.L_RESERVATIONS) >> 3
        self._rows = words[at : at + 4 * N_RESERVATIONS]
        start = self.offset + table.L_RESERVATIONS
        self._table = ring.segment.control[start : start + 32 * N_RESERVATIONS].view(np.int64).reshape(-1, 4)
        at = (self.offset + table.L_COUNTERS) >> 3
        self._counters = words[at : at + 4 * table.N_MEMBERS]
        start = self.offset + table.L_COUNTERS
        counters = ring.segment.control[start : start + 32 * table.N_MEMBERS]
        self._counter_table = counters.view(np.int64).reshape(-1, 4)
        self.samplers = WaitQueue(ring.segment, self.offset + table.L_SAMPLERS, "to sample")
        self.writers = WaitQueue(ring.segment, self.offset + table.L_WRITERS, "to insert")

    # -- asking ------------------------------------------------------------------------------------------------

    def budget(self) -> int | None:
        """Records that may still be reserved; None without a ratio."""
        words, (numerator, denominator) = self.words, self.pair()
        if not denominator:
            return None
        return self.ring.words[W_WRITES] * numerator // denominator - words[B_RETURNED] - words[B_RESERVED]

    def is_ready(self, n: int, need: int = 1) -> bool:
        """Whether data and budget permit a sample of ``n`` that needs ``need`` records to be there."""
        size = self.ring.words[W_LEN]
        if size < need or size < self.words[B_MIN_SIZE]:
            return False
        budget = self.budget()
        return budget is None or budget >= n

    def may_write(self, n: int) -> bool:
        """Whether ``n`` more inserts keep within ``max_inserts_ahead`` of what was sampled."""
        words, ring, (numerator, denominator) = self.words, self.ring.words, self.pair()
        if not words[B_MAX_AHEAD] or not denominator:
            return True
        if ring[W_LEN] < words[B_MIN_SIZE]:
            return True
        ahead = ring[W_WRITES] + words[B_ADMITTED] + n - words[B_MAX_AHEAD]
        if ahead * numerator <= words[B_RETURNED] * denominator:
            return True
        head = self.samplers.head(None) if self.samplers.waiting else -1
        # a sampler that waits for inserts must not wait for a writer that waits for samples
        return head >= 0 and not words[B_ADMITTED] and not self.is_ready(*self.samplers.asked(None, head))

    def why_not(self, n: int, need: int = 1) -> str:
        """What a sample of ``n`` lacks, with the figures."""
        words, size = self.words, self.ring.words[W_LEN]
        if size < max(need, words[B_MIN_SIZE]):
            return f"data: {size} records are there, {max(need, words[B_MIN_SIZE])} are needed"
        budget = self.budget()
        if budget is not None and budget < n:
            return (
                f"the ratio: samples_per_insert={self.ratio():g}, {self.ring.words[W_WRITES]} records inserted, "
                f"{words[B_RETURNED]} sampled, {words[B_RESERVED]} reserved: budget {budget} for a batch of {n}"
            )
        if self.samplers.waiting:
            return f"its turn: {self.samplers.waiting} calls of sample(wait=True) wait"
        return "nothing any more"

    # -- ratio -------------------------------------------------------------------------------------------------

    def ratio(self) -> float:
        """Samples per insert; inf without a limit."""
        numerator, denominator = self.pair()
        return numerator / denominator if denominator else float("inf")

    def pair(self) -> tuple[int, int]:
        """Numerator and denominator; a denominator of 0 is no limit."""
        at = B_RATIOS + 2 * self.words[B_PAIR]
        return self.words[at], self.words[at + 1]

    def store_pair(self, held, numerator: int, denominator: int) -> None:
        """Fill the pair that is not in use, then use it: readers outside the lock never see half of two."""
        words = self.words
        other = 1 - words[B_PAIR]
        words[B_RATIOS + 2 * other], words[B_RATIOS + 2 * other + 1] = numerator, denominator
        if locked_point:
            locked_point("shmreplay.locked.ratio.pair")
        words[B_PAIR] = other

    def set_ratio(self, ratio: Fraction | None) -> None:
        """Change the ratio in every process; None lifts it. Wakes who waits."""
        numerator, denominator = (ratio.numerator, ratio.denominator) if ratio is not None else (0, 0)
        self.ring.set_words(lambda held, _: self.store_pair(held, numerator, denominator), self.offset)

    @section
    def moment(self) -> dict:
        """Counters and gauges of one moment."""
        lock, words = self.segment.lock, self.ring.words
        totals = None if self.words[B_LIMITED] else self.totals()  # these change without the lock
        try:
            lock.acquire()
            calls, returned, waits = totals or self.totals()
            budget = self.budget()
            return {
                "calls": calls,
                "returned": returned,
                "waits": waits,
                "size": words[W_LEN],
                "written": words[W_WRITES],
                "extent": words[W_EXTENT],
                "waiting": self.samplers.waiting,
                "reserved": self.words[B_RESERVED],
                "budget": float("inf") if budget is None else budget,
                "ratio": self.ratio(),
            }
        finally:
            lock.here.unlock()

    # -- counting ----------------------------------------------------------------------------------------------

    def count(self, returned: int) -> None:
        """Count one served call of an unlimited buffer: no lock but this process's own."""
        if self.segment.row < 0:
            self.segment.seat()
        with self.segment.counter_lock:
            self._count(returned)

    def _count(self, returned: int) -> None:
        at, counters = 4 * self.segment.row, self._counters
        counters[at + C_RETURNED] += returned
        counters[at + C_CALLS] += 1

    def _count_wait(self) -> None:
        with self.segment.counter_lock:
            self._counters[4 * self.segment.row + C_WAITS] += 1

    def counted(self) -> list[int]:
        """Sums of the member counters, read twice until equal: calls, records returned, calls that waited."""
        while True:
            sums = self._counter_table[:, :3].sum(0).tolist()
            if sums == self._counter_table[:, :3].sum(0).tolist():
                return sums

    def totals(self) -> tuple[int, int, int]:
        """(sample calls, records returned, calls that waited), over all members, since the last ``empty(True)``."""
        words, first = self.words, self.counted()
        returned = words[B_RETURNED] if words[B_LIMITED] else first[C_RETURNED] - words[B_BASE_RETURNED]
        return first[C_CALLS] - words[B_BASE_CALLS], returned, first[C_WAITS] + words[B_WAIT_COUNT]

    def emptied(self, held, zero: bool) -> None:
        """The epoch has passed: open reservations count no more; with ``zero``, neither does what was returned."""
        self.words[B_RESERVED] = self.words[B_ADMITTED] = 0
        if zero:
            calls, returned, _ = self._counter_table[:, :3].sum(0).tolist()  # no loop under the lock
            self.words[B_RETURNED] = 0
            self.words[B_BASE_RETURNED] = returned
            self.words[B_BASE_CALLS] = calls
