"""The scalar words of a segment: changing them as one operation, waiting within limits, holding writers off.

Words, all changed under the lock after ``lock.begin`` saved them:

- CURSOR: slots handed out since the last ``empty()``; slot = cursor % capacity. EXTENT: slots reserved so far, bounds
  the draws. LEN: slots that hold a record. WRITES: records committed. EPOCH: how often emptied, plus one.
- OPEN_SLOTS: slots of the present epoch that an entry writes. COMMITS: commits so far.
- GATE, GATE_ROW, GATE_INC: a snapshot or a load holds writers off, and who does. CLOSED: shut down in every process.
- SLEEPERS: tickets in all queues, so that a commit with nobody to wake looks at one word.

CLAIMED (rows that may be touched) only grows, under the lock, after the space was claimed outside it.
"""

import threading
import time

from ..errors import ClosedError, SampleTimeoutError
from ..shm import table
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    W_CLAIMED, W_CLOSED, W_CURSOR, W_EPOCH, W_EXTENT, W_FLOOR, W_GATE, W_GATE_INC, W_GATE_ROW, W_LEN, W_OPEN,
    W_OPEN_ODD, W_OPEN_SLOTS, W_SLEEPERS, W_WRITES,
)  # fmt: skip
from .journal import Journal
from .ops import OP_EMPTY, OP_WORDS
from .queue import WaitQueue
from .stamps import Stamps

GATE_SNAPSHOT, GATE_LOAD = 1, 2


class Limits(threading.local):
    """What bounds the waits of the calling thread: set by the public call, read by the waits below it."""

    deadline: float | None = None
    timeout: float | None = None
    cancel_event = None
    depth = 0  # writes of this thread under way; above 1 in a signal handler or finalizer

    def __init__(self):
        self.closed = lambda: False


class Control:
    """The words, stamps and journal of one segment.

    Mutable state is shared, in the words above. Local: ``limits`` (per thread); ``state`` (a proxy of what knows the
    ledgers: whom a commit serves, how the dead are buried) and ``claim_rows`` (claims the records of a range of rows),
    set once by the layers beside and above.
    """

    def __init__(self, segment):
        self.segment = segment
        self.capacity = segment.capacity
        self.quarter = max(1, segment.capacity // 4)
        self.stamps = Stamps(segment)
        self.journal = Journal(segment)
        at = table.WORDS >> 3
        self.words = segment.words[at : at + table.N_WORDS]
        self._counters = segment.words[table.OP >> 3 : table.WORDS >> 3]
        self.queue = WaitQueue(segment, table.WAITERS, "for slots that others write")
        self.limits = Limits()
        self.state = self.claim_rows = None

    def check_limits(self, what: str) -> None:
        """Raise if the calling thread's wait is over."""
        limits = self.limits
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

    def claim(self, rows: int) -> None:
        """Claim rows up to ``rows`` and a step beyond, outside the lock; claiming twice is harmless."""
        self.claim_rows(self.words[W_CLAIMED], rows)

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

    def hold_writers(self, gate: int = GATE_SNAPSHOT) -> None:
        """Take the gate, then wait until no write is in flight; ``release_writers`` opens it.

        Dead owners of the gate or of writes in flight are buried on the way. Samplers go on.
        """
        segment, blocked = self.segment, [None]

        def take(held, words):
            blocked[0] = (words[W_GATE_ROW], words[W_GATE_INC]) if words[W_GATE] else None
            if blocked[0] is None:
                words[W_GATE_ROW], words[W_GATE_INC] = segment.row, segment.inc
                words[W_GATE] = gate

        self.set_words(take)
        while blocked[0] is not None:
            self._nap_unqueued(*blocked[0])
            self.set_words(take)
        point("shmreplay.gate.taken")
        try:
            while self.words[W_OPEN]:
                for entry in self.journal.entries(None):
                    self._nap_unqueued(*self.journal.owner(entry))
        except BaseException:
            self.release_writers()
            raise

    def _nap_unqueued(self, row: int, inc: int) -> None:
        time.sleep(0.0005)
        self.check_limits("Replay buffer did not get its writers to pause")
        self.probe(row, inc)

    def release_writers(self) -> None:
        """Open the gate, if this process holds it."""
        row, inc = self.segment.row, self.segment.inc

        def open_gate(held, words):
            if words[W_GATE_ROW] == row and words[W_GATE_INC] == inc:
                words[W_GATE] = 0

        self.set_words(open_gate)

    # -- empty, close        ------------------------------------------------------------------------------------

    def empty(self, zero_writes: bool) -> None:
        """All records are gone at once; their handles are stale, and writes in flight will neither count nor appear.

        Waits while another process loads other content.
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
            if words[W_GATE] == GATE_LOAD:
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
    def set_words(self, change, ledger_words: int = 0) -> None:
        """Run ``change(held, words)``, a few scalar stores, as one operation; wakes who may go on.

        ``ledger_words`` is the byte offset of the ledger whose words it changes too.
        """
        lock, sleepers = self.segment.lock, ()
        if self.segment.row < 0:
            self.segment.seat()
        try:
            held = lock.acquire()
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
