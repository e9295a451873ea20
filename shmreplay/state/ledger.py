"""The ledger of one buffer: reserving from its account, in the order of asking.

Reservation rows: KIND (with a number; written last, cleared first), owner, n, epoch. A sampler that dies between
reserving and settling leaves its row; whoever is short of budget asks for the owners of the rows and buries the dead,
which gives it back. ``settle`` lowers RESERVED before it raises RETURNED; a death inside puts both back and frees the
row: that batch was returned to nobody.
"""

import time

import numpy as np

from ..errors import BudgetError, ClosedError, MembersFullError, SampleTimeoutError
from ..shm import table
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    B_ADMITTED, B_RESERVED, B_RETURNED, N_RESERVATIONS, OP_NEXT_SEQ, R_EPOCH, R_KIND, R_KINDS, R_N, R_OWNER, R_SAMPLE,
    R_WRITE, W_CLOSED, W_EPOCH, W_SLEEPERS,
)  # fmt: skip
from .account import Account
from .ops import OP_LEDGER
from .queue import WaitQueue

NO_ROW = N_RESERVATIONS
_GLANCE = 0.001  # seconds between two looks of a wait without a ticket


class Claim:
    """A reservation of budget (samplers) or of room to insert (writers), as its own process sees it.

    ``row`` is -1 while it holds none; ``ticket`` stays when it was served, for a sample that must wait again.
    """

    __slots__ = ("kind", "n", "row", "mark", "epoch", "place", "ticket", "seen", "need")

    def __init__(self, kind: int, n: int, need: int = 1):
        self.kind, self.n, self.need = kind, n, need
        self.row, self.mark, self.epoch, self.place, self.ticket, self.seen = -1, 0, 0, -1, 0, 0


class Ledger(Account):
    """Ledger number ``index`` of a segment: what may be reserved, by whom, in which order."""

    # -- reserving ---------------------------------------------------------------------------------------------

    def admit(self, claim: Claim, wait: bool) -> None:
        """Reserve ``claim.n``; with ``wait``, in the order of asking, within the calling thread's limits.

        Raises:
            BudgetError: not now, and ``wait`` is False. SampleTimeoutError: past the deadline.
            ClosedError: cancelled or shut down.
        """
        if self.segment.row < 0:
            self.segment.seat()
        if self.ring.debts:
            self.ring.pay_debts()
        self._try(claim, False)
        if claim.row >= 0:
            return
        while self.bury_holders():
            self._try(claim, False)
            if claim.row >= 0:
                return
        if not wait:
            raise BudgetError(
                "Replay readiness or the sample-to-insert ratio does not currently permit this sample "
                f"({self.why_not(claim.n, claim.need)}). Pass wait=True to wait."
            )
        self._wait(claim)

    def _wait(self, claim: Claim) -> None:
        queue = self.samplers if claim.kind == R_SAMPLE else self.writers
        try:
            self._count_wait()
            self._try(claim, True)
            while claim.row < 0:
                point("shmreplay.waiting")
                woken = self.segment.event.nap(queue.word(claim.place)[0], claim.seen, self.ring.limits.call.deadline)
                self._try(claim, True)
                if claim.row < 0:
                    self._check_limits(claim)
                    if not woken:
                        self._bury_ahead(queue, claim)
                        self.bury_holders()
        finally:
            try:
                if claim.place >= 0:
                    self._leave(claim)
            except BaseException:
                self.ring.debts.append((self._leave, claim))
                self.ring.pay_debts()
                raise

    def _check_limits(self, claim: Claim) -> None:
        try:
            self.ring.check_limits("wait")
        except ClosedError as error:
            if "cancelled" in str(error):
                raise ClosedError("Replay-buffer sampling was cancelled.") from None
            raise ClosedError("A shut down replay buffer cannot be sampled.") from None
        except SampleTimeoutError:
            timeout = self.ring.limits.call.timeout
            if claim.kind == R_WRITE:
                text = f"Replay buffer did not admit {claim.n} inserts within {timeout} seconds (max_inserts_ahead)."
            else:
                text = (
                    f"Replay buffer did not obtain sample-ratio budget within {timeout} seconds: it lacks "
                    f"{self.why_not(claim.n, claim.need)}."
                )
            raise SampleTimeoutError(text) from None

    @section
    def _try(self, claim: Claim, may_queue: bool) -> None:
        lock, sleepers = self.segment.lock, ()
        queue = self.samplers if claim.kind == R_SAMPLE else self.writers
        try:
            held = lock.acquire()
            if self.ring.words[W_CLOSED]:
                raise ClosedError("A shut down replay buffer cannot be sampled or written.")
            head = queue.head(held) if queue.waiting else -1
            mine = head < 0 or head == claim.place
            if mine and (self.is_ready(claim.n, claim.need) if claim.kind == R_SAMPLE else self.may_write(claim.n)):
                sleepers = self._reserve(held, claim, queue)
            elif may_queue:
                sleepers = self._enter(held, claim, queue)
        finally:
            lock.here.unlock()
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

    def _enter(self, held, claim: Claim, queue: WaitQueue) -> list[int]:
        sleepers, segment = [], self.segment
        if claim.place < 0:
            segment.lock.begin(held, OP_LEDGER, self._operand(NO_ROW), self.offset)
            owner = (segment.row, segment.inc)
            claim.place, claim.ticket = queue.next_place(held, claim.ticket)
            queue.enter(held, claim.place, claim.ticket, owner, claim.n, claim.need)
            self.ring.words[W_SLEEPERS] += 1
            if claim.kind == R_SAMPLE:
                sleepers = self._ring_writers(held)
            segment.lock.finish(held)
        claim.seen = queue.word(claim.place)[1]
        return sleepers

    def _operand(self, row: int) -> int:
        return self.index * (NO_ROW + 1) + row

    def _reserve(self, held, claim: Claim, queue: WaitQueue) -> list[int]:
        words, rows, lock = self.words, self._rows, self.segment.lock
        for row in range(N_RESERVATIONS):
            if not rows[4 * row + R_KIND]:
                break
        else:
            raise MembersFullError(f"{N_RESERVATIONS} calls hold budget, the most that one buffer can")
        lock.begin(held, OP_LEDGER, self._operand(row), self.offset)
        at = 4 * row
        rows[at + R_OWNER] = self.segment.inc * table.N_MEMBERS + self.segment.row
        claim.epoch = rows[at + R_EPOCH] = self.ring.words[W_EPOCH]
        rows[at + R_N] = claim.n
        counters = self.ring.counters
        counters[OP_NEXT_SEQ] += 1
        claim.mark = rows[at + R_KIND] = counters[OP_NEXT_SEQ] * R_KINDS + claim.kind
        if locked_point:
            locked_point("shmreplay.locked.admit.row")
        claim.row = row
        words[B_RESERVED if claim.kind == R_SAMPLE else B_ADMITTED] += claim.n
        if locked_point:
            locked_point("shmreplay.locked.admit.reserved")
        if claim.place >= 0:
            self._leave_place(held, claim, queue)
        sleepers = self.wakes(held)
        lock.finish(held)
        return sleepers

    def _leave_place(self, held, claim: Claim, queue: WaitQueue) -> None:
        if queue.leave(held, claim.place, claim.ticket):
            self.ring.words[W_SLEEPERS] -= 1
        claim.place = -1

    @section
    def _leave(self, claim: Claim) -> None:
        lock, sleepers = self.segment.lock, ()
        queue = self.samplers if claim.kind == R_SAMPLE else self.writers
        try:
            held = lock.acquire(True)
            lock.begin(held, OP_LEDGER, self._operand(NO_ROW), self.offset)
            self._leave_place(held, claim, queue)
            sleepers = self.wakes(held)
            lock.finish(held)
        finally:
            lock.here.unlock()
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

    def wait_ready(self, n: int, need: int) -> bool:
        """Wait, without a ticket, until a sample of ``n`` is possible; False when the limits end the wait."""
        ring = self.ring
        while True:
            limits = ring.limits.call
            if ring.words[W_CLOSED] or limits.closed():
                raise ClosedError("A shut down replay buffer cannot become sampleable.")
            if limits.cancel_event is not None and limits.cancel_event.is_set():
                return False
            if not self.samplers.waiting and self.is_ready(n, need):
                return True
            if limits.deadline is not None and time.monotonic() >= limits.deadline:
                return False
            time.sleep(_GLANCE)

    # -- settling ----------------------------------------------------------------------------------------------

    @section
    def settle(self, claim: Claim, returned: int) -> None:
        """Give back what was reserved, count what was returned; nothing if the epoch has passed."""
        if claim.row < 0:
            return
        lock, sleepers, rows, words = self.segment.lock, (), self._rows, self.words
        point("shmreplay.settle")
        try:
            held = lock.acquire(True)
            at = 4 * claim.row
            if rows[at + R_KIND] == claim.mark:
                lock.begin(held, OP_LEDGER, self._operand(claim.row), self.offset)
                rows[at + R_KIND] = 0
                if locked_point:
                    locked_point("shmreplay.locked.settle.row")
                if claim.epoch == self.ring.words[W_EPOCH]:
                    words[B_RESERVED if claim.kind == R_SAMPLE else B_ADMITTED] -= claim.n
                    if locked_point:
                        locked_point("shmreplay.locked.settle.reserved")
                    words[B_RETURNED] += returned
                    if returned:
                        self._count(returned)
                        if locked_point:
                            locked_point("shmreplay.locked.settle.counted")
                sleepers = self.wakes(held)
                lock.finish(held)
            claim.row = -1
        finally:
            lock.here.unlock()
        point("shmreplay.settled")
        if sleepers:
            self.segment.event.wake(sleepers, self.segment.path)

    # -- waking, burying, resetting ----------------------------------------------------------------------------

    def wakes(self, held) -> list[int]:
        """Ring the sampler and the writer that may go on now."""
        sleepers, queue = [], self.samplers
        if queue.waiting:
            head = queue.head(held)
            if head >= 0 and self.is_ready(*queue.asked(held, head)):
                sleepers.append(queue.ring(held, head))
        return sleepers + self._ring_writers(held)

    def _ring_writers(self, held) -> list[int]:
        queue = self.writers
        if queue.waiting:
            head = queue.head(held)
            if head >= 0 and self.may_write(queue.asked(held, head)[0]):
                return [queue.ring(held, head)]
        return []

    def _bury_ahead(self, queue: WaitQueue, claim: Claim) -> None:
        ahead = queue.ahead_of(None, claim.place)
        if ahead is not None:
            self.ring.probe(*ahead[1:])

    def bury_holders(self) -> bool:
        """Bury dead owners of reservations and queue heads; True if there was one."""
        members = self.segment.members
        if members is None:
            return False
        dead = [owner for owner in self.owners(None) if members.is_dead(*owner)]
        for owner in dead:
            self.ring.state.bury(*owner)
        return bool(dead)

    def owners(self, held) -> set[tuple[int, int]]:
        """Who holds budget, and who is at the head of a queue."""
        owners = {divmod(int(o), table.N_MEMBERS)[::-1] for o in self._table[self._table[:, R_KIND] != 0, R_OWNER]}
        for queue in (self.samplers, self.writers):
            head = queue.head(held) if queue.waiting else -1
            if head >= 0:
                owners.add(queue.owner(held, head))
        return owners

    def forget_owner(self, held, row: int, inc: int) -> None:
        """Free the reservations and tickets of a dead owner; inside an operation that recounts if interrupted."""
        owner = inc * table.N_MEMBERS + row
        for at in np.flatnonzero((self._table[:, R_KIND] != 0) & (self._table[:, R_OWNER] == owner)).tolist():
            self._rows[4 * at + R_KIND] = 0
        for queue in (self.samplers, self.writers):
            queue.drop(held, row, inc)
        self.recount(held)

    def free_row(self, held, row: int) -> None:
        """The reservation row that an unfinished operation was about."""
        if row < NO_ROW:
            self._rows[4 * row + R_KIND] = 0

    def recount(self, held) -> int:
        """Set the sums from the rows and the queues; returns how many tickets wait."""
        epoch, rows = self.ring.words[W_EPOCH], self._table
        for kind, word in ((R_SAMPLE, B_RESERVED), (R_WRITE, B_ADMITTED)):
            mine = (rows[:, R_KIND] % R_KINDS == kind) & (rows[:, R_EPOCH] == epoch)
            self.words[word] = int(rows[mine, R_N].sum())
        return self.samplers.recount(held) + self.writers.recount(held)

    def clear(self) -> None:
        """No reservation and no ticket: the content came from elsewhere, their owners did not."""
        start = self.offset + table.L_RESERVATIONS
        self.segment.control[start : self.offset + table.L_COUNTERS] = 0
        self.recount(None)
