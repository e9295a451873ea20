"""The ring: reserving slots, committing and abandoning them, pinning them.

If a writer dies in ``_reserve`` under the lock, the words go back, the slots already marked stay without a record and
the entry is freed; between reserve and commit, whoever meets the entry abandons it: its slots stay odd until they are
written again; in ``commit`` under the lock, the next holder completes it, since all bytes were there before it began.
The words are those of ``control.py``.
"""

import numpy as np

from ..errors import ClosedError, CorruptError
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    J_COUNT, J_EPOCH, J_KIND, J_SEQ, J_START, J_WHOLE, LIST, OP_NEXT_WRITER, PIN, RANGE, W_CLAIMED, W_CLOSED, W_COMMITS,
    W_CURSOR, W_EPOCH, W_EXTENT, W_FLOOR, W_GATE, W_GATE_INC, W_GATE_ROW, W_LEN, W_OPEN_SLOTS, W_SLEEPERS, W_WRITES,
)  # fmt: skip
from .control import Control
from .journal import slices
from .ops import OP_ABANDON, OP_COMMIT, OP_RESERVE, OP_WORDS
from .stamps import whole

_CLAIM = (-1, 0)  # "blocked" because rows must be claimed first


class Writing:
    """Who writes, for trajectories: a number unique in the segment and the cursor of the previous record."""

    __slots__ = ("number", "inc", "epoch", "previous")

    def __init__(self):
        self.number = self.inc = self.epoch = self.previous = 0


class Write:
    """One reservation, as its own process sees it: ``entry`` is -1 while it holds none.

    ``blocked`` is None, or the (row, incarnation) that the last attempt waits for. ``claim(start, rows)`` claims rows.
    """

    __slots__ = ("entry", "seq", "start", "n", "slots", "claim", "writing", "place", "ticket", "seen", "blocked")

    def __init__(self, n: int, slots: np.ndarray | None = None, claim=None, writing: Writing | None = None):
        self.entry, self.seq, self.start, self.place, self.ticket, self.seen = -1, 0, -1, -1, 0, 0
        self.n, self.slots, self.claim, self.writing, self.blocked = n, slots, claim, writing, None


class Ring(Control):
    """The slots of one segment; see ``Control`` for what is mutable."""

    # -- reserve -----------------------------------------------------------------------------------------------

    def reserve(self, write: Write) -> None:
        """Reserve ``write.n`` slots at the cursor, or ``write.slots`` (no slot twice); waits for slots in flight.

        Raises:
            ClosedError: shut down or cancelled. SampleTimeoutError: past the deadline while waiting.
            SpaceError: no room for the rows.
        """
        if self.segment.row < 0:
            self.segment.seat()
        if self.debts:
            self.pay_debts()
        writing = write.writing
        if writing.inc != self.segment.inc:
            writing.number, writing.inc = 0, self.segment.inc
        self._reserve(write, False)
        if write.blocked is not None:
            self.wait_for_slots(write, lambda: self._reserve(write, True))
        self.fence()  # the marks must be seen before the bytes
        point("shmreplay.reserved")

    def wait_for_slots(self, write: Write, attempt) -> None:
        """Repeat ``attempt`` until it is not blocked; in between nap, and bury the dead that stand in the way."""
        try:
            while write.blocked is not None:
                if write.blocked is _CLAIM:
                    write.claim(self.words[W_CLAIMED], self._needed_rows(write))
                else:
                    self._nap(write)
                attempt()
        finally:
            try:
                if write.place >= 0:
                    self._leave_queue(write)
            except BaseException:
                self.debts.append((self._leave_queue, write))
                self.pay_debts()
                raise

    def _nap(self, write: Write) -> None:
        point("shmreplay.blocked")
        event, place = self.segment.event, write.place
        woken = place >= 0 and event.nap(self.queue.word(place)[0], write.seen, self.limits.call.deadline)
        self.check_limits("Replay buffer did not get the slots to write")
        if not woken:
            self.probe(*write.blocked)

    def _needed_rows(self, write: Write) -> int:
        if write.slots is not None:
            return int(write.slots.max()) + 1
        return min(self.capacity, self.words[W_CURSOR] + write.n)

    @section
    def _reserve(self, write: Write, may_queue: bool) -> None:
        words, lock = self.words, self.segment.lock
        try:
            held = lock.acquire()
            write.blocked = self._blocked(held, write)
            if write.blocked is None:
                entry = self.journal.free_entry(held)
                lock.begin(held, OP_RESERVE, self.journal.next_operand(held, entry))
                write.start = words[W_CURSOR] if write.slots is None else -1
                n_whole = self._whole_before(write)
                kind = RANGE if write.slots is None else LIST
                write.seq = self.journal.open(held, entry, kind, write.start, write.n, write.slots, n_whole)
                write.entry = entry
                if locked_point:
                    locked_point("shmreplay.locked.entry")
                self._mark(held, write)
                words[W_LEN] -= n_whole
                words[W_OPEN_SLOTS] += write.n
                self._leave_place(held, write)
                lock.finish(held)
            elif may_queue and write.blocked is not _CLAIM:
                self._enter_queue(held, write)
        finally:
            lock.here.unlock()

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

    def _mark(self, held, write: Write) -> None:
        """Mark the slots as being written; advance the cursor and the extent."""
        words, epoch, n, writing = self.words, self.words[W_EPOCH], write.n, write.writing
        if not writing.number:
            writing.number = self.counters[OP_NEXT_WRITER] = self.counters[OP_NEXT_WRITER] + 1
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
        if locked_point:
            locked_point("shmreplay.locked.marked")

    def guarded(self, write: Write, step):
        """Run ``step()``; whatever ends it, ``write`` holds no slots afterwards."""
        try:
            return step()
        finally:
            try:
                if write.entry >= 0:
                    self.abandon(write)
            except BaseException:
                self.debts.append((self.abandon, write))
                self.pay_debts()
                raise

    # -- commit, abandon ---------------------------------------------------------------------------------------

    @section
    def commit(self, write: Write) -> None:
        """Make the reservation's records whole and count them; wakes who waits for them."""
        words, lock = self.words, self.segment.lock
        sleepers = ()
        point("shmreplay.copied")
        try:
            held = lock.acquire(True)
            if not self.journal.is_open(held, write.entry, write.seq):
                raise CorruptError("this process's write was resolved as that of a dead process; report this")
            lock.begin(held, OP_COMMIT, write.entry)
            epoch = self.journal.rows[8 * write.entry + J_EPOCH]
            self.apply_commit(held, write.entry)
            if words[W_SLEEPERS]:
                sleepers = self.wakes(held)
            write.entry = -1
            if write.slots is None:
                write.writing.previous, write.writing.epoch = write.start + write.n, epoch
            lock.finish(held)
        finally:
            lock.here.unlock()
        point("shmreplay.committed")
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

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
        if locked_point:
            locked_point("shmreplay.locked.counted")
        words[W_COMMITS] += 1
        self.journal.close(held, entry)

    @section
    def abandon(self, write: Write) -> None:
        """Give a reservation up: its slots hold no record until they are written again."""
        lock, sleepers = self.segment.lock, ()
        try:
            held = lock.acquire(True)
            if self.journal.is_open(held, write.entry, write.seq):
                lock.begin(held, OP_ABANDON, write.entry)
                self.apply_abandon(held, write.entry)
                sleepers = self.wakes(held)
                lock.finish(held)
            write.entry = -1
        finally:
            lock.here.unlock()
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

    def apply_abandon(self, held, entry: int) -> None:
        """The locked half of giving up; the cursor goes back if this is the newest reservation."""
        words, rows, at = self.words, self.journal.rows, 8 * entry
        if rows[at + J_EPOCH] == words[W_EPOCH] and rows[at + J_WHOLE] >= 0:
            words[W_OPEN_SLOTS] -= rows[at + J_COUNT]
            if rows[at + J_START] >= 0 and rows[at + J_START] + rows[at + J_COUNT] == words[W_CURSOR]:
                words[W_CURSOR] = rows[at + J_START]
                words[W_FLOOR] = min(words[W_FLOOR], words[W_CURSOR])
        if locked_point:
            locked_point("shmreplay.locked.abandoned")
        self.journal.close(held, entry)

    def undo_reserve(self, held, operand: int) -> None:
        """After a death in ``_reserve``: words are back; what was marked holds no record any more.

        KIND says nothing here: a recoverer that died may have cleared it. The number tells whether the entry was filled.
        """
        entry, seq = self.journal.entry_of(operand)
        rows, at = self.journal.rows, 8 * entry
        if rows[at + J_SEQ] == seq and rows[at + J_WHOLE] >= 0:
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
        point("shmreplay.pinned")
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
                lock.begin(held, OP_RESERVE, self.journal.next_operand(held, entry))
                if slots.size:
                    write.seq = self.journal.open(held, entry, PIN, -1, slots.size, slots, -1)
                    write.entry = entry
                self._leave_place(held, write)
                lock.finish(held)
            elif may_queue:
                self._enter_queue(held, write)
        finally:
            lock.here.unlock()

    # -- queue of blocked writes -------------------------------------------------------------------------------

    def _enter_queue(self, held, write: Write) -> None:
        lock, segment = self.segment.lock, self.segment
        if write.place < 0:
            lock.begin(held, OP_WORDS, 0)
            write.place, write.ticket = self.queue.next_place(held)
            self.queue.enter(held, write.place, write.ticket, (segment.row, segment.inc), write.n)
            self.words[W_SLEEPERS] += 1
            lock.finish(held)
        write.seen = self.queue.word(write.place)[1]

    def _leave_place(self, held, write: Write) -> None:
        if write.place >= 0:
            if self.queue.leave(held, write.place, write.ticket):
                self.words[W_SLEEPERS] -= 1
            write.place = -1

    @section
    def _leave_queue(self, write: Write) -> None:
        lock, sleepers = self.segment.lock, ()
        try:
            held = lock.acquire(True)
            lock.begin(held, OP_WORDS, 0)
            self._leave_place(held, write)
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            lock.here.unlock()
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)
