"""The scalar words of a segment: changing them as one operation, waiting within limits, holding writers off.

Words, all changed under the lock after ``lock.begin`` saved them:

- CURSOR: slots handed out since the last ``empty()``; slot = cursor % capacity. EXTENT: slots reserved so far, bounds
  the draws. LEN: slots that hold a record. WRITES: records committed. EPOCH: how often emptied, plus one.
- OPEN_SLOTS: slots of the present epoch that an entry writes. COMMITS: commits so far.
- GATE, GATE_ROW, GATE_INC: a snapshot or a load holds writers off, and who does. CLOSED: shut down in every process.
- SLEEPERS: tickets in all queues, so that a commit with nobody to wake looks at one word.

CLAIMED (rows that may be touched) only grows, under the lock, after the space was claimed outside it.
"""

import platform
import time

from ..errors import ClosedError, SampleTimeoutError
from ..shm import table
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    OP_NEXT_SEQ, W_CLAIMED, W_CLOSED, W_CURSOR, W_EPOCH, W_EXTENT, W_FLOOR, W_GATE, W_GATE_INC, W_GATE_ROW, W_GATE_SEQ,
    W_LEN, W_OPEN, W_OPEN_ODD, W_OPEN_SLOTS, W_SLEEPERS, W_WRITES,
)  # fmt: skip
from .journal import Journal
from .ops import OP_EMPTY, OP_WORDS
from .queue import WaitQueue
from .stamps import Stamps

GATE_SNAPSHOT, GATE_LOAD = 1, 2


_ORDERED = platform.machine() in ("x86_64", "AMD64", "i686")  # stores, and loads, are seen in program order


class Hold:
    """One holding-off of writers, as its own process sees it; ``seq`` is 0 while it holds nothing."""

    __slots__ = ("gate", "seq", "blocked")

    def __init__(self, gate: int = GATE_SNAPSHOT):
        self.gate, self.seq, self.blocked = gate, 0, None


class Control:
    """The words, stamps and journal of one segment.

    Mutable state is shared, in the words above. Local: ``limits`` (per thread); ``debts``: clean-ups that could not be
    done when their call ended (a second interruption, a lock held by a stopped process), each idempotent, paid by the
    next call; ``state``: a proxy, set once, of what knows the ledgers.
    """

    def __init__(self, segment):
        self.segment = segment
        self.capacity = segment.capacity
        self.quarter = max(1, segment.capacity // 4)
        self.stamps = Stamps(segment)
        self.journal = Journal(segment)
        at = table.WORDS >> 3
        self.words = segment.words[at : at + table.N_WORDS]
        self.counters = segment.words[table.OP >> 3 : table.WORDS >> 3]
        self.queue = WaitQueue(segment, table.WAITERS, "for slots that others write")
        self.limits = segment.limits
        self.debts: list[tuple] = []
        self.state = None

    def check_limits(self, what: str) -> None:
        """Raise if the calling thread's wait is over."""
        limits = self.limits.call
        if self.words[W_CLOSED] or limits.closed():
            raise ClosedError(f"{what}: the replay buffer was shut down while waiting.")
        if limits.cancel_event is not None and limits.cancel_event.is_set():
            raise ClosedError(f"{what}: the call was cancelled.")
        if limits.deadline is not None and time.monotonic() >= limits.deadline:
            raise SampleTimeoutError(f"{what} within {limits.timeout} seconds.")

    def probe(self, row: int, inc: int) -> None:
        """Bury the owner (row, inc) if it is dead."""
        members = self.segment.members
        if members is not None and row >= 0 and members.is_dead(row, inc):
            self.state.bury(row, inc)

    def pay_debts(self) -> None:
        """Do the clean-ups that earlier calls of this process left; they stay owed if this one is cut short too."""
        while self.debts:
            debt = self.debts[0]
            debt[0](*debt[1:])
            if debt in self.debts:
                self.debts.remove(debt)

    def fence(self) -> None:
        """Order this thread's memory accesses before and after, where the machine does not by itself."""
        if not _ORDERED:
            self._lock_once()

    @section
    def _lock_once(self) -> None:
        lock = self.segment.lock
        try:
            lock.acquire()
        finally:
            lock.here.unlock()

    @section
    def claimed(self, rows: int) -> None:
        """Rows up to ``rows`` are claimed now."""
        lock = self.segment.lock
        try:
            lock.acquire()
            if rows > self.words[W_CLAIMED]:
                self.words[W_CLAIMED] = rows
                if locked_point:
                    locked_point("shmreplay.locked.claimed")
        finally:
            lock.here.unlock()

    def wakes(self, held) -> list[int]:
        """Ring whoever may go on now: the first blocked write, and the samplers that the ledgers name."""
        if not self.words[W_SLEEPERS]:
            return []
        sleepers = self.state.ring_ledgers(held)
        if self.queue.waiting:
            sleepers.append(self.queue.ring(held, self.queue.head(held)))
        return sleepers

    # -- holding writers off -----------------------------------------------------------------------------------

    def holding(self, step, gate: int = GATE_SNAPSHOT):
        """Run ``step()`` while no write is in flight and none begins; whatever ends it, the gate is open afterwards."""
        hold = Hold(gate)
        try:
            self.hold_writers(hold)
            return step()
        finally:
            try:
                self.release_writers(hold)
            except BaseException:
                self.debts.append((self.release_writers, hold))
                self.pay_debts()
                raise

    def hold_writers(self, hold: Hold) -> None:
        """Take the gate, then wait until no write is in flight; ``holding`` gives it back.

        Dead owners of the gate or of writes in flight are buried on the way. Samplers go on.
        """
        if self.debts:
            self.pay_debts()
        self.set_words(lambda held, words: self._take_gate(words, hold))
        while hold.blocked is not None:
            self._nap_unqueued(*hold.blocked)
            self.set_words(lambda held, words: self._take_gate(words, hold))
        point("shmreplay.gate.taken")
        while self.words[W_OPEN]:
            for entry in self.journal.entries(None):
                self._nap_unqueued(*self.journal.owner(entry))
            self._lock_once()  # whoever finds a half-done operation of the dead repairs the count

    def _take_gate(self, words, hold: Hold) -> None:
        hold.blocked = (words[W_GATE_ROW], words[W_GATE_INC]) if words[W_GATE] else None
        if hold.blocked is None:
            hold.seq = words[W_GATE_SEQ] = self.counters[OP_NEXT_SEQ] = self.counters[OP_NEXT_SEQ] + 1
            words[W_GATE_ROW], words[W_GATE_INC] = self.segment.row, self.segment.inc
            words[W_GATE] = hold.gate

    def _nap_unqueued(self, row: int, inc: int) -> None:
        time.sleep(0.0005)
        self.check_limits("Replay buffer did not get its writers to pause")
        self.probe(row, inc)

    def release_writers(self, hold: Hold) -> None:
        """Open the gate if ``hold`` has it; a load that did not come to its end leaves the buffer empty."""
        if hold.seq:
            self.set_words(lambda held, words: self._open_gate(held, words, hold.seq), must=True)
            hold.seq = 0

    def _open_gate(self, held, words, seq: int) -> None:
        if words[W_GATE] and words[W_GATE_SEQ] == seq:
            self.state.drop_gate(held)

    # -- empty, close        ------------------------------------------------------------------------------------

    def empty(self, zero_writes: bool) -> None:
        """All records are gone at once; their handles are stale, and writes in flight will neither count nor appear.

        Waits while another process saves or loads.
        """
        if self.segment.row < 0:
            self.segment.seat()
        blocked = self._empty(zero_writes)
        while blocked is not None:
            self._nap_unqueued(*blocked)
            blocked = self._empty(zero_writes)

    @section
    def _empty(self, zero_writes: bool) -> tuple[int, int] | None:
        lock, words, sleepers = self.segment.lock, self.words, ()
        try:
            held = lock.acquire()
            if words[W_GATE]:
                return words[W_GATE_ROW], words[W_GATE_INC]
            lock.begin(held, OP_EMPTY, int(zero_writes))
            self.apply_empty(held, zero_writes)
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            lock.here.unlock()
        point("shmreplay.emptied")
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)
        return None

    def apply_empty(self, held, zero_writes: bool) -> None:
        """The locked half of ``empty``; applied again after its holder died inside."""
        words = self.words
        words[W_EPOCH] += 1
        if locked_point:
            locked_point("shmreplay.locked.epoch")
        words[W_CURSOR] = words[W_EXTENT] = words[W_LEN] = words[W_OPEN_SLOTS] = words[W_FLOOR] = 0
        words[W_OPEN_ODD] = words[W_OPEN]
        if zero_writes:
            words[W_WRITES] = 0
        if locked_point:
            locked_point("shmreplay.locked.emptied")
        self.state.emptied(held, zero_writes)

    @section
    def set_words(self, change, ledger_words: int = 0, *, must: bool = False) -> None:
        """Run ``change(held, words)``, a few scalar stores, as one operation; wakes who may go on.

        ``ledger_words`` is the byte offset of the ledger whose words it changes too.
        """
        lock, sleepers = self.segment.lock, ()
        if self.segment.row < 0:
            self.segment.seat()
        try:
            held = lock.acquire(must)
            lock.begin(held, OP_WORDS, 0, ledger_words)
            change(held, self.words)
            if locked_point:
                locked_point("shmreplay.locked.changed")
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            lock.here.unlock()
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

    def close(self) -> None:
        """End all waits and writes, in every process; they notice within one nap."""

        def change(held, words):
            words[W_CLOSED] = 1

        self.set_words(change)
