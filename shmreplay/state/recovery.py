"""What the next holder does after a holder left the lock in the middle of an operation.

``RobustLock.acquire`` calls ``State.recover`` when it finds the operation word set. By then the saved scalar words are
back (``lock.pending``); the table says how to bring rows and stamps in line with them.

===========  ==========================================================  ========================================
operation    half-done states                                            what the next holder does
===========  ==========================================================  ========================================
RESERVE      entry absent; entry there, some or all slots marked          free the entry; marked slots stay empty
COMMIT       some or all slots whole; entry there or freed                 apply the commit again, whole
ABANDON      words half changed; entry there or freed                      apply the abandon again, whole
EMPTY        epoch advanced or not; some ledgers reset                     apply the empty again, whole
LEDGER       row there or not; ticket there or not; sums half changed      free the row, count sums and queues anew
WORDS        some scalar words changed; a ticket there or not              words are back; count queues anew
===========  ==========================================================  ========================================

Everything above can be applied twice: a recoverer that dies leaves the operation word set and the saved words as
they were. After every row the queues are counted anew, since tickets are entered inside several operations.
"""

import logging
import os
import weakref

from ..errors import MembersFullError
from ..shm import space, table
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    B_ADMITTED, B_RESERVED, M_INC, M_LEFT, N_LEDGERS, W_DEAD, W_EPOCH, W_GATE, W_GATE_INC, W_GATE_ROW, W_N_LEDGERS,
    W_OPEN, W_RECOVERIES, W_SLEEPERS,
)  # fmt: skip
from .control import GATE_LOAD
from .ledger import NO_ROW, Ledger
from .ops import OP_ABANDON, OP_COMMIT, OP_EMPTY, OP_LEDGER, OP_RESERVE, OP_WORDS
from .ring import Ring

_log = logging.getLogger("shmreplay")


class State:
    """Ring and ledgers of one segment, with the hooks between them and the recovery of both.

    Mutable: nothing of its own; it wires the parts once.
    """

    def __init__(self, segment):
        self.segment = segment
        self.ring = ring = Ring(segment)
        self.ledgers = [Ledger(ring, index) for index in range(N_LEDGERS)]
        ring.state = proxy = weakref.proxy(self)  # no cycles: a dropped buffer is freed at once
        segment.lock.recover = lambda held: proxy.recover(held)
        segment.resolve_owner = lambda held, row, inc: proxy.resolve_owner(held, row, inc)

    def _recovery_table(self) -> dict:
        ring = self.ring
        return {
            OP_RESERVE: ring.undo_reserve,
            OP_COMMIT: ring.apply_commit,
            OP_ABANDON: ring.apply_abandon,
            OP_EMPTY: lambda held, zero: ring.apply_empty(held, bool(zero)),
            OP_LEDGER: self._free_row,
            OP_WORDS: lambda held, argument: None,
        }

    def used_ledgers(self) -> list[Ledger]:
        """The ledgers that buffers use; all that live below the highest ever used."""
        return self.ledgers[: self.ring.words[W_N_LEDGERS]]

    def add_ledger(self) -> Ledger:
        """A ledger for one more buffer on this segment.

        Raises:
            MembersFullError: all are in use.
        """
        found = []
        while not found:
            index = self.ring.words[W_N_LEDGERS]
            if index >= N_LEDGERS:
                raise MembersFullError(f"{N_LEDGERS} buffers use this storage, the most that it serves")
            if self.segment.path is not None:
                control = os.path.join(self.segment.path, "control")
                at = table.LEDGERS + index * table.LEDGER_NBYTES
                space.claim(control, [(at, table.LEDGER_NBYTES)], "the ledger of a buffer", memory=True)
            self.ring.set_words(lambda held, words: self._take_ledger(words, index, found))
        return found[-1]

    def _take_ledger(self, words, index: int, found: list) -> None:
        if words[W_N_LEDGERS] == index:  # else another process took the one that was claimed
            words[W_N_LEDGERS] = index + 1
            found.append(self.ledgers[index])

    def ring_ledgers(self, held) -> list[int]:
        """Ring, in every ledger, who may go on now."""
        sleepers = []
        for ledger in self.used_ledgers():
            sleepers += ledger.wakes(held)
        return sleepers

    def emptied(self, held, zero: bool) -> None:
        """Tell every ledger that the epoch has passed."""
        for ledger in self.used_ledgers():
            ledger.emptied(held, zero)
            if locked_point:
                locked_point("shmreplay.locked.ledger.emptied")

    def _free_row(self, held, argument: int) -> None:
        index, row = divmod(argument, NO_ROW + 1)
        self.ledgers[index].free_row(held, row)

    def recover(self, held) -> None:
        """Bring the state in line after a holder left in the middle; see the table above."""
        lock, words = self.segment.lock, self.ring.words
        op, argument = lock.pending(held)
        if locked_point:
            locked_point("shmreplay.locked.recover")
        self._recovery_table()[op](held, argument)
        if locked_point:
            locked_point("shmreplay.locked.recovery.applied")
        self._recount(held)
        words[W_RECOVERIES] += 1
        if locked_point:
            locked_point("shmreplay.locked.recovered")
        lock.finish(held)

    def _recount(self, held) -> None:
        waiting = self.ring.queue.recount(held)
        for ledger in self.used_ledgers():
            waiting += ledger.recount(held)
        self.ring.words[W_SLEEPERS] = waiting

    @section
    def bury(self, row: int, inc: int) -> None:
        """Resolve all that a dead owner held: open writes, pins, reservations, tickets, the gate."""
        lock, sleepers, buried = self.segment.lock, (), False
        at = (table.MEMBERS >> 3) + 8 * row + M_INC
        try:
            held = lock.acquire()
            buried = self.segment.words[at] == inc  # else somebody else did; what was opened since goes too
            self.resolve_owner(held, row, inc)
            sleepers = self.ring.wakes(held)
        finally:
            lock.here.unlock()
        point("shmreplay.buried")
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)
        if buried:
            pid = self.segment.words[(table.MEMBERS >> 3) + 8 * row + table.M_PID]
            _log.warning("a process of the replay buffer died (pid %d); what it held was given back", pid)

    def resolve_owner(self, held, row: int, inc: int) -> None:
        """The locked half of ``bury``; each step an operation of its own, so that it can be begun again."""
        lock, ring, words = self.segment.lock, self.ring, self.ring.words
        for entry in ring.journal.entries(held):
            if ring.journal.owner(entry) == (row, inc):
                lock.begin(held, OP_ABANDON, entry)
                ring.apply_abandon(held, entry)
                lock.finish(held)
        lock.begin(held, OP_WORDS, 0)
        if words[W_GATE] and words[W_GATE_ROW] == row and words[W_GATE_INC] == inc:
            self.drop_gate(held)
        if locked_point:
            locked_point("shmreplay.locked.bury.gate")
        ring.queue.drop(held, row, inc)
        for ledger in self.used_ledgers():
            ledger.forget_owner(held, row, inc)
        if locked_point:
            locked_point("shmreplay.locked.bury.forgotten")
        self._recount(held)
        at = (table.MEMBERS >> 3) + 8 * row + M_INC
        words[W_DEAD] += self.segment.words[at] == inc != self.segment.words[at + M_LEFT - M_INC]
        lock.finish(held)
        if locked_point:
            locked_point("shmreplay.locked.bury.row")
        if self.segment.words[at] == inc:  # last: until then, everybody who meets the dead begins again
            self.segment.words[at] = 0

    def drop_gate(self, held) -> None:
        """Open the gate; a load that did not come to its end leaves the buffer empty."""
        words = self.ring.words
        loading = words[W_GATE] == GATE_LOAD
        words[W_GATE] = 0
        if loading:  # half of another content was written under the next epoch: step over it
            words[W_EPOCH] += 1
            self.ring.apply_empty(held, False)

    def check_valid(self) -> None:
        """Raise AssertionError unless the state's invariants hold; with no call under way."""
        ring, words = self.ring, self.ring.words
        rows = ring.stamps
        n_whole = rows.whole_count(slice(0, words[table.W_CLAIMED]), words[W_EPOCH])
        assert n_whole == words[table.W_LEN], (n_whole, words[table.W_LEN])
        entries = ring.journal.entries(None)
        assert len(entries) == words[W_OPEN], (entries, words[W_OPEN])
        assert 0 <= words[table.W_LEN] <= words[table.W_EXTENT] <= ring.capacity
        assert not self.segment.words[table.OP >> 3]
        for ledger in self.used_ledgers():
            reserved, admitted = ledger.words[B_RESERVED], ledger.words[B_ADMITTED]
            waiting = ledger.recount(None)
            assert (reserved, admitted) == (ledger.words[B_RESERVED], ledger.words[B_ADMITTED]), (reserved, admitted)
            assert waiting <= words[W_SLEEPERS], (waiting, words[W_SLEEPERS])
