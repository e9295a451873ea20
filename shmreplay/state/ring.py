"""The ring: reserving slots, committing and abandoning them, pinning them, holding writers off.

Words, all changed under the lock after ``lock.begin`` saved them:

- CURSOR: slots handed out since the last ``empty()``; slot = cursor % capacity. EXTENT: slots reserved so far, bounds
  the draws. LEN: slots that hold a record. WRITES: records committed. EPOCH: how often emptied, plus one.
- OPEN_SLOTS: slots of the present epoch that an entry writes. COMMITS: commits so far.
- GATE, GATE_ROW, GATE_INC: a snapshot or a load holds writers off, and who does. CLOSED: shut down in every process.

If a writer dies in ``_reserve`` under the lock, the words go back, the slots already marked stay without a record and
the entry is freed; between reserve and commit, whoever meets the entry abandons it: its slots stay odd until they are
written again; in ``commit`` under the lock, the next holder completes it, since all bytes were there before it began.
"""

import threading
import time

import numpy as np

from ..errors import ClosedError, CorruptError, SampleTimeoutError
from ..shm import event, table
from ..shm.lock import section, unlock
from ..shm.points import locked_point, point
from ..shm.table import (
    J_COUNT, J_EPOCH, J_KIND, J_START, J_WHOLE, LIST, OP_NEXT_WRITER, PIN, RANGE, W_CLAIMED, W_CLOSED, W_COMMITS,
    W_CURSOR, W_EPOCH, W_EXTENT, W_FLOOR, W_GATE, W_GATE_INC, W_GATE_ROW, W_LEN, W_OPEN, W_OPEN_ODD, W_OPEN_SLOTS,
    W_SLEEPERS, W_WRITES,
)  # fmt: skip
from .journal import Journal, slices
from .ops import OP_ABANDON, OP_COMMIT, OP_EMPTY, OP_RESERVE, OP_WORDS
from .queue import WaitQueue
from .stamps import Stamps, whole

GATE_SNAPSHOT, GATE_LOAD = 1, 2
_CLAIM = (-1, 0)  # "blocked" because rows must be claimed first


class Writing:
    """Who writes, for trajectories: a number unique in the segment and the cursor of the previous record."""

    __slots__ = ("number", "inc", "epoch", "previous")

    def __init__(self):
        self.number = self.inc = self.epoch = self.previous = 0


class Write:
    """One reservation, as its own process sees it: ``entry`` is -1 while it holds none.

    ``blocked`` is None, or the (row, incarnation) that the last attempt waits for.
    """

    __slots__ = ("entry", "seq", "start", "n", "slots", "place", "seen", "blocked")

    def __init__(self, n: int, slots: np.ndarray | None = None):
        self.entry, self.seq, self.start, self.place, self.seen = -1, 0, -1, -1, 0
        self.n, self.slots, self.blocked = n, slots, None


class Limits(threading.local):
    """What bounds the waits of the calling thread: set by the public call, read by the waits below it."""

    deadline: float | None = None
    timeout: float | None = None
    cancel_event = None

    def __init__(self):
        self.closed = lambda: False


class Ring:
    """The slots of one segment.

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

    # -- reserve -----------------------------------------------------------------------------------------------

    def reserve(self, write: Write, writing: Writing) -> None:
        """Reserve ``write.n`` slots at the cursor, or ``write.slots`` (no slot twice); waits for slots in flight.

        Raises:
            ClosedError: shut down or cancelled. SampleTimeoutError: past the deadline while waiting.
            SpaceError: no room for the rows.
        """
        if self.segment.row < 0:
            self.segment.seat()
        if writing.inc != self.segment.inc:
            writing.number, writing.inc = 0, self.segment.inc
        self._reserve(write, writing, False)
        if write.blocked is not None:
            self.wait_for_slots(write, lambda: self._reserve(write, writing, True))
        point("shmreplay.reserved")

    def wait_for_slots(self, write: Write, attempt) -> None:
        """Repeat ``attempt`` until it is not blocked; in between nap, and bury the dead that stand in the way."""
        try:
            while write.blocked is not None:
                if write.blocked is _CLAIM:
                    self.claim(self._needed_rows(write))
                else:
                    self._nap(write)
                attempt()
        finally:
            if write.place >= 0:
                self._leave_queue(write)

    def _nap(self, write: Write) -> None:
        woken = write.place >= 0 and event.nap(self.queue.word(write.place)[0], write.seen, self.limits.deadline)
        self.check_limits("Replay buffer did not get the slots to write")
        if not woken:
            self.probe(*write.blocked)

    def probe(self, row: int, inc: int) -> None:
        """Bury the owner (row, inc) if it is dead."""
        members = self.segment.members
        if members is not None and row >= 0 and members.is_dead(row, inc):
            self.state.bury(row, inc)

    def check_limits(self, what: str) -> None:
        """Raise if the calling thread's wait is over."""
        limits = self.limits
        if self.words[W_CLOSED] or limits.closed():
            raise ClosedError(f"{what}: the replay buffer was shut down while waiting.")
        if limits.cancel_event is not None and limits.cancel_event.is_set():
            raise ClosedError(f"{what}: the call was cancelled.")
        if limits.deadline is not None and time.monotonic() >= limits.deadline:
            raise SampleTimeoutError(f"{what} within {limits.timeout} seconds.")

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
        finally:
            unlock(lock.mutex)

    def _needed_rows(self, write: Write) -> int:
        if write.slots is not None:
            return int(write.slots.max()) + 1
        return min(self.capacity, self.words[W_CURSOR] + write.n)

    @section
    def _reserve(self, write: Write, writing: Writing, may_queue: bool) -> None:
        words, lock = self.words, self.segment.lock
        try:
            held = lock.acquire()
            write.blocked = self._blocked(held, write)
            if write.blocked is None:
                entry = self.journal.free_entry(held)
                lock.begin(held, OP_RESERVE, entry)
                write.start = words[W_CURSOR] if write.slots is None else -1
                n_whole = self._whole_before(write)
                kind = RANGE if write.slots is None else LIST
                write.seq = self.journal.open(held, entry, kind, write.start, write.n, write.slots, n_whole)
                write.entry = entry
                if locked_point:
                    locked_point("shmreplay.locked.entry")
                self._mark(held, write, writing)
                words[W_LEN] -= n_whole
                words[W_OPEN_SLOTS] += write.n
                self._leave_place(held, write)
                lock.finish(held)
            elif may_queue and write.blocked is not _CLAIM:
                self._enter_queue(held, write)
        finally:
            unlock(lock.mutex)

    def _blocked(self, held, write: Write) -> tuple[int, int] | None:
        words = self.words
        if words[W_CLOSED]:
            raise ClosedError("The replay buffer was shut down: it takes no more writes.")
        if words[W_GATE]:
            return words[W_GATE_ROW], words[W_GATE_INC]
        ahead = self._ahead(held, write)
        if ahead is not None:
            return ahead
        if self._needed_rows(write) > words[W_CLAIMED]:
            return _CLAIM
        if write.slots is None:
            entry = self.journal.range_conflict(held, write.n)
        else:
            entry = self.journal.list_conflict(held, write.slots)
        return None if entry < 0 else self.journal.owner(entry)

    def _ahead(self, held, write: Write) -> tuple[int, int] | None:
        """The owner of the ticket that must go first; None if it is this write's turn."""
        if not self.queue.waiting:
            return None
        if write.place >= 0:
            ahead = self.queue.ahead_of(held, write.place)
            return None if ahead is None else ahead[1:]
        return self.queue.owner(held, self.queue.head(held))

    def _whole_before(self, write: Write) -> int:
        """Records that the write replaces."""
        words = self.words
        if write.slots is not None:
            return self.stamps.whole_count(write.slots, words[W_EPOCH])
        if words[W_LEN] + words[W_OPEN_SLOTS] == words[W_EXTENT]:  # no holes, and none of these is in flight
            first, extent = write.start % self.capacity, words[W_EXTENT]
            until = first + write.n
            wrapped = min(max(0, until - self.capacity), extent)
            return max(0, min(until, extent) - first) + wrapped
        parts = slices(write.start, write.n, self.capacity)
        return sum(self.stamps.whole_count(part, words[W_EPOCH]) for part in parts)

    def _mark(self, held, write: Write, writing: Writing) -> None:
        """Mark the slots as being written; advance the cursor and the extent."""
        words, epoch, n = self.words, self.words[W_EPOCH], write.n
        if not writing.number:
            writing.number = self._counters[OP_NEXT_WRITER] = self._counters[OP_NEXT_WRITER] + 1
            writing.epoch = 0
        if write.slots is not None:
            self.stamps.begin(held, write.slots, epoch, writing.number, 0)
            words[W_EXTENT] = max(words[W_EXTENT], int(write.slots.max()) + 1)
            return
        end = write.start + n
        previous = np.arange(write.start, end)
        previous[0] = writing.previous if writing.epoch == epoch else 0
        done = 0
        for part in slices(write.start, n, self.capacity):
            size = part.stop - part.start
            self.stamps.begin(held, part, epoch, writing.number, previous[done : done + size])
            done += size
        words[W_CURSOR] = end
        if words[W_EXTENT] < self.capacity:
            words[W_EXTENT] = max(words[W_EXTENT], min(end, self.capacity))
        writing.previous, writing.epoch = end, epoch
        if locked_point:
            locked_point("shmreplay.locked.marked")

    # -- commit, abandon ---------------------------------------------------------------------------------------

    @section
    def commit(self, write: Write) -> None:
        """Make the reservation's records whole and count them; wakes who waits for them."""
        words, lock = self.words, self.segment.lock
        sleepers = ()
        point("shmreplay.copied")
        try:
            held = lock.acquire()
            if not self.journal.is_open(held, write.entry, write.seq):
                raise CorruptError("this process's write was resolved as that of a dead process; report this")
            lock.begin(held, OP_COMMIT, write.entry)
            self.apply_commit(held, write.entry)
            if words[W_SLEEPERS]:
                sleepers = self.wakes(held)
            write.entry = -1
            lock.finish(held)
        finally:
            unlock(lock.mutex)
        point("shmreplay.committed")
        if sleepers:
            event.wake(sleepers, self.segment.path)

    def apply_commit(self, held, entry: int) -> None:
        """The locked half of a commit; applied again after its holder died inside."""
        words, rows, at = self.words, self.journal.rows, 8 * entry
        for part in self.journal.where(entry):
            self.stamps.end(held, part)
        if locked_point:
            locked_point("shmreplay.locked.whole")
        if rows[at + J_EPOCH] == words[W_EPOCH]:
            n = rows[at + J_COUNT]
            words[W_OPEN_SLOTS] -= n
            words[W_LEN] += n
            words[W_WRITES] += n
        words[W_COMMITS] += 1
        self.journal.close(held, entry)

    @section
    def abandon(self, write: Write) -> None:
        """Give a reservation up: its slots hold no record until they are written again."""
        lock, sleepers = self.segment.lock, ()
        try:
            held = lock.acquire()
            if self.journal.is_open(held, write.entry, write.seq):
                lock.begin(held, OP_ABANDON, write.entry)
                self.apply_abandon(held, write.entry)
                sleepers = self.wakes(held)
                lock.finish(held)
            write.entry = -1
        finally:
            unlock(lock.mutex)
        if sleepers:
            event.wake(sleepers, self.segment.path)

    def apply_abandon(self, held, entry: int) -> None:
        """The locked half of giving up; the cursor goes back if this is the newest reservation."""
        words, rows, at = self.words, self.journal.rows, 8 * entry
        if rows[at + J_EPOCH] == words[W_EPOCH] and rows[at + J_WHOLE] >= 0:
            words[W_OPEN_SLOTS] -= rows[at + J_COUNT]
            if rows[at + J_START] >= 0 and rows[at + J_START] + rows[at + J_COUNT] == words[W_CURSOR]:
                words[W_CURSOR] = rows[at + J_START]
                words[W_FLOOR] = min(words[W_FLOOR], words[W_CURSOR])
        self.journal.close(held, entry)

    def undo_reserve(self, held, entry: int) -> None:
        """After a death in ``_reserve``: words are back; what was marked holds no record any more."""
        rows, at = self.journal.rows, 8 * entry
        if rows[at + J_KIND] and rows[at + J_WHOLE] >= 0:
            epoch = self.words[W_EPOCH]
            n_whole = sum(self.stamps.whole_count(part, epoch) for part in self.journal.where(entry))
            self.words[W_LEN] += n_whole - rows[at + J_WHOLE]
        rows[at + J_KIND] = 0

    # -- pins --------------------------------------------------------------------------------------------------

    def pin(self, write: Write, candidates: np.ndarray) -> np.ndarray:
        """Keep up to ``write.n`` of the slots that hold a record still, until ``abandon(write)``.

        ``candidates`` are tried in order. Waits, with writers, in the order of asking. Returns the pinned slots,
        possibly fewer or none.
        """
        if self.segment.row < 0:
            self.segment.seat()
        self._pin(write, candidates, False)
        if write.blocked is not None:
            self.wait_for_slots(write, lambda: self._pin(write, candidates, True))
        return write.slots

    @section
    def _pin(self, write: Write, candidates: np.ndarray, may_queue: bool) -> None:
        words, lock = self.words, self.segment.lock
        try:
            held = lock.acquire()
            if words[W_GATE]:
                write.blocked = words[W_GATE_ROW], words[W_GATE_INC]
            else:
                write.blocked = self._ahead(held, write)
            if write.blocked is None:
                rows = self.stamps.take(candidates)
                slots = candidates[whole(rows, words[W_EPOCH])][: write.n]
                write.slots = slots
                entry = self.journal.free_entry(held)
                lock.begin(held, OP_RESERVE, entry)
                if slots.size:
                    write.seq = self.journal.open(held, entry, PIN, -1, slots.size, slots, -1)
                    write.entry = entry
                self._leave_place(held, write)
                lock.finish(held)
            elif may_queue:
                self._enter_queue(held, write)
        finally:
            unlock(lock.mutex)

    # -- queue of blocked writes -------------------------------------------------------------------------------

    def _enter_queue(self, held, write: Write) -> None:
        lock, segment = self.segment.lock, self.segment
        if write.place < 0:
            lock.begin(held, OP_WORDS, 0)
            write.place = self.queue.enter(held, segment.row, segment.inc, write.n, self.words[W_EPOCH])
            self.words[W_SLEEPERS] += 1
            lock.finish(held)
        write.seen = self.queue.word(write.place)[1]

    def _leave_place(self, held, write: Write) -> None:
        if write.place >= 0:
            if self.queue.leave(held, write.place, self.segment.row, self.segment.inc):
                self.words[W_SLEEPERS] -= 1
            write.place = -1

    @section
    def _leave_queue(self, write: Write) -> None:
        lock, sleepers = self.segment.lock, ()
        try:
            held = lock.acquire()
            lock.begin(held, OP_WORDS, 0)
            self._leave_place(held, write)
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            unlock(lock.mutex)
        if sleepers:
            event.wake(sleepers, self.segment.path)

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
            unlock(lock.mutex)
        if sleepers:
            event.wake(sleepers, self.segment.path)
        return None

    def apply_empty(self, held, zero_writes: bool) -> None:
        """The locked half of ``empty``; applied again after its holder died inside."""
        words = self.words
        words[W_EPOCH] += 1
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
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            unlock(lock.mutex)
        if sleepers:
            event.wake(sleepers, self.segment.path)

    def close(self) -> None:
        """End all waits and writes, in every process; they notice within one nap."""

        def change(held, words):
            words[W_CLOSED] = 1

        self.set_words(change)
