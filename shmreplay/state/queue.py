"""A first-come-first-served queue of waiting calls, in shared memory.

One row a waiting call: ticket (0 when free; else the ticket's number minus 2**62, so that free rows never are the
smallest), owner, how much it asks and needs, and the futex word that it sleeps on. All changes under the lock; TICKET is
written last on entering and cleared first on leaving, so a row is either absent or whole. Only the head may be
served. A waiter that dies stays in the queue until the one behind it asks (each nap) and removes it.
"""

import numpy as np

from ..errors import MembersFullError
from ..shm import table
from ..shm.points import locked_point
from ..shm.table import Q_HEADER_NEXT, Q_HEADER_WAITING, Q_INC, Q_N, Q_NEED, Q_ROW, Q_TICKET, Q_WORD

_BASE = 1 << 62


class WaitQueue:
    """The queue at byte ``offset`` of a segment."""

    def __init__(self, segment, offset: int, purpose: str):
        self._words = segment.words
        self._head = offset >> 3
        self._rows = self._head + 8
        self._address = segment.address + offset + 64
        self._purpose = purpose
        rows = segment.control[offset + 64 : offset + 64 + 64 * table.N_TICKETS].view(np.int64)
        self._tickets = rows.reshape(table.N_TICKETS, 8)[:, Q_TICKET]

    @property
    def waiting(self) -> int:
        """How many tickets wait."""
        return self._words[self._head + Q_HEADER_WAITING]

    def next_place(self, held, ticket: int = 0) -> tuple[int, int]:
        """A free place (a row index) and its ticket, the old one if there is one; to be noted before ``enter``."""
        words = self._words
        for place in range(table.N_TICKETS):
            at = self._rows + 8 * place
            if not words[at + Q_TICKET]:
                break
        else:
            raise MembersFullError(f"{table.N_TICKETS} calls wait {self._purpose}, the most that can: raise timeouts")
        if not ticket:
            ticket = words[self._head + Q_HEADER_NEXT] - _BASE
            words[self._head + Q_HEADER_NEXT] += 1
        return place, ticket

    def enter(self, held, place: int, ticket: int, owner: tuple[int, int], n: int, need: int = 1) -> None:
        """Queue up at ``place``."""
        words, at = self._words, self._rows + 8 * place
        words[at + Q_ROW], words[at + Q_INC] = owner
        words[at + Q_N], words[at + Q_NEED] = n, need
        if locked_point:
            locked_point("shmreplay.locked.queue.filled")
        words[at + Q_TICKET] = ticket
        if locked_point:
            locked_point("shmreplay.locked.queue.entered")
        words[self._head + Q_HEADER_WAITING] += 1

    def leave(self, held, place: int, ticket: int) -> bool:
        """Give the place up; False if it is no longer that ticket's (then nothing changes)."""
        words, at = self._words, self._rows + 8 * place
        if words[at + Q_TICKET] != ticket:
            return False
        words[at + Q_TICKET] = 0
        if locked_point:
            locked_point("shmreplay.locked.queue.left")
        words[self._head + Q_HEADER_WAITING] -= 1
        return True

    def head(self, held) -> int:
        """The place that is served next; -1 when nobody waits."""
        place = int(self._tickets.argmin())
        return place if self._tickets[place] else -1

    def asked(self, held, place: int) -> tuple[int, int]:
        """How much the call at ``place`` asks for, and how many records it needs to be there."""
        at = self._rows + 8 * place
        return self._words[at + Q_N], self._words[at + Q_NEED]

    def ahead_of(self, held, place: int) -> tuple[int, int, int] | None:
        """(place, row, incarnation) of the one directly ahead; None for the head."""
        tickets = self._tickets
        mine = tickets[place]
        before = int(np.where(tickets < mine, tickets, -(1 << 63)).argmax())
        if tickets[before] >= mine:
            return None
        at = self._rows + 8 * before
        return before, self._words[at + Q_ROW], self._words[at + Q_INC]

    def owner(self, held, place: int) -> tuple[int, int]:
        """(row, incarnation) of the call at ``place``."""
        at = self._rows + 8 * place
        return self._words[at + Q_ROW], self._words[at + Q_INC]

    def word(self, place: int) -> tuple[int, int]:
        """Address of the place's futex word, and its value now."""
        return self._address + 64 * place + 8 * Q_WORD, self._words[self._rows + 8 * place + Q_WORD] & 0x7FFFFFFF

    def ring(self, held, place: int) -> int:
        """Change the word of ``place``; returns its address, to be woken after the lock."""
        at = self._rows + 8 * place + Q_WORD
        self._words[at] = (self._words[at] + 1) & 0x7FFFFFFF
        return self._address + 64 * place + 8 * Q_WORD

    def recount(self, held) -> int:
        """Set the count from the rows; after a holder died."""
        count = int(np.count_nonzero(self._tickets))
        self._words[self._head + Q_HEADER_WAITING] = count
        return count

    def drop(self, held, row: int, inc: int) -> None:
        """Remove the tickets of a dead owner."""
        words = self._words
        for place in np.flatnonzero(self._tickets).tolist():
            at = self._rows + 8 * place
            if words[at + Q_ROW] == row and words[at + Q_INC] == inc:
                self.leave(held, place, words[at + Q_TICKET])
