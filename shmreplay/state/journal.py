"""The journal: every write in flight is an entry before it changes a stamp.

An entry is (KIND, owner row and incarnation, epoch, start cursor or list, count, records that it replaces, sequence
number). All changes under the lock; KIND is written last and cleared first, so an entry is absent or whole. Kinds:
RANGE (slots from a cursor on), LIST (up to LIST_SLOTS named slots; START is -1), PIN (named slots that a reader keeps
still; START and WHOLE are -1). The other words stay when KIND is cleared, so that an operation can be applied again.

Words kept here: OPEN (entries in use), OPEN_ODD (those that are not a range of the present epoch), FLOOR (no open range
of the present epoch starts below this cursor; raised when a conflict check finds a higher bound).
"""

import numpy as np

from ..errors import MembersFullError
from ..shm import table
from ..shm.points import locked_point
from ..shm.table import (
    FREE, J_COUNT, J_EPOCH, J_INC, J_KIND, J_ROW, J_SEQ, J_START, J_WHOLE, LIST_SLOTS, N_ENTRIES, OP_NEXT_SEQ,
    W_CURSOR, W_EPOCH, W_FLOOR, W_OPEN, W_OPEN_ODD,
)  # fmt: skip


class Journal:
    """The entries of one segment."""

    def __init__(self, segment):
        self.segment = segment
        self.capacity = segment.capacity
        at = table.WORDS >> 3
        self._words = segment.words[at : at + table.N_WORDS]
        self._counters = segment.words[table.OP >> 3 : table.WORDS >> 3]
        at = table.JOURNAL >> 3
        self.rows = segment.words[at : at + 8 * N_ENTRIES]
        self._kinds = segment.control[table.JOURNAL : table.JOURNAL + 64 * N_ENTRIES].view(np.int64)[J_KIND::8]
        lists = segment.control[table.LISTS : table.LISTS + 8 * LIST_SLOTS * N_ENTRIES]
        self._lists = lists.view(np.int64).reshape(N_ENTRIES, LIST_SLOTS)

    def free_entry(self, held) -> int:
        """An unused entry.

        Raises:
            MembersFullError: all are in use.
        """
        rows = self.rows
        for entry in range(N_ENTRIES):
            if not rows[8 * entry]:
                return entry
        raise MembersFullError(f"{N_ENTRIES} writes are in flight, the most that one buffer can hold at once")

    def next_operand(self, held, entry: int) -> int:
        """What the operation word carries for filling ``entry``: the entry, and the number that it will get."""
        return (self._counters[OP_NEXT_SEQ] + 1) * N_ENTRIES + entry

    @staticmethod
    def entry_of(operand: int) -> tuple[int, int]:
        """(entry, number) of an operand."""
        seq, entry = divmod(operand, N_ENTRIES)
        return entry, seq

    def open(self, held, entry: int, kind: int, start: int, n: int, slots, whole: int) -> int:
        """Fill an entry; returns its sequence number. ``slots`` is None for a RANGE."""
        rows, words, at = self.rows, self._words, 8 * entry
        rows[at + J_ROW], rows[at + J_INC] = self.segment.row, self.segment.inc
        rows[at + J_EPOCH] = words[W_EPOCH]
        rows[at + J_START], rows[at + J_COUNT], rows[at + J_WHOLE] = start, n, whole
        if slots is not None:
            self._lists[entry, :n] = slots
            words[W_OPEN_ODD] += 1
        seq = self._counters[OP_NEXT_SEQ] + 1
        rows[at + J_SEQ] = self._counters[OP_NEXT_SEQ] = seq
        if locked_point:
            locked_point("shmreplay.locked.entry.filled")
        rows[at + J_KIND] = kind
        if locked_point:
            locked_point("shmreplay.locked.entry.open")
        words[W_OPEN] += 1
        return seq

    def close(self, held, entry: int) -> None:
        """Free an entry. If the holder dies between the two stores, its operation is applied again."""
        rows, words, at = self.rows, self._words, 8 * entry
        odd = rows[at + J_START] < 0 or rows[at + J_EPOCH] != words[W_EPOCH]
        rows[at + J_KIND] = FREE
        if locked_point:
            locked_point("shmreplay.locked.entry.freed")
        words[W_OPEN] -= 1
        words[W_OPEN_ODD] -= odd

    def where(self, entry: int) -> list:
        """The slots of an entry, as what numpy indexes with: one or two slices, or one index array."""
        rows, at = self.rows, 8 * entry
        if rows[at + J_START] < 0:
            return [self._lists[entry, : rows[at + J_COUNT]]]
        return slices(rows[at + J_START], rows[at + J_COUNT], self.capacity)

    def is_open(self, held, entry: int, seq: int) -> bool:
        """Whether ``entry`` is still the one that was opened as ``seq``."""
        return bool(self.rows[8 * entry]) and self.rows[8 * entry + J_SEQ] == seq

    def owner(self, entry: int) -> tuple[int, int]:
        """(row, incarnation) of the owner."""
        return self.rows[8 * entry + J_ROW], self.rows[8 * entry + J_INC]

    def entries(self, held) -> list[int]:
        """The entries in use."""
        return np.flatnonzero(self._kinds).tolist()

    def range_conflict(self, held, n: int) -> int:
        """An entry that holds one of the next ``n`` slots at the cursor; -1 if none does."""
        words = self._words
        if not words[W_OPEN_ODD] and words[W_CURSOR] + n - words[W_FLOOR] <= self.capacity:
            return -1
        rows, capacity, cursor = self.rows, self.capacity, words[W_CURSOR]
        first, floor = cursor % capacity, cursor
        for entry in self.entries(held):
            at = 8 * entry
            count = rows[at + J_COUNT]
            if rows[at + J_START] >= 0:
                begin = rows[at + J_START] % capacity
                if (first - begin) % capacity < count or (begin - first) % capacity < n:
                    return entry
                if rows[at + J_EPOCH] == words[W_EPOCH]:
                    floor = min(floor, rows[at + J_START])
            elif ((self._lists[entry, :count] - first) % capacity < n).any():
                return entry
        words[W_FLOOR] = floor
        return -1

    def list_conflict(self, held, slots: np.ndarray) -> int:
        """An entry that holds one of ``slots``; -1 if none does."""
        if not self._words[W_OPEN]:
            return -1
        rows = self.rows
        for entry in self.entries(held):
            at = 8 * entry
            count = rows[at + J_COUNT]
            if rows[at + J_START] >= 0:
                hit = ((slots - rows[at + J_START]) % self.capacity < count).any()
            else:
                hit = np.isin(self._lists[entry, :count], slots).any()
            if hit:
                return entry
        return -1


def slices(start: int, n: int, capacity: int) -> list[slice]:
    """Slots of ``n <= capacity`` cursors from ``start`` on: one slice, or two around the end."""
    first = start % capacity
    if first + n <= capacity:
        return [slice(first, first + n)]
    return [slice(first, capacity), slice(0, first + n - capacity)]
