"""Stamps: one 32-byte row a slot, read with one gather.

====================  ======  ==========================================================================
word                  bytes   meaning
====================  ======  ==========================================================================
revision              8       content's sequence lock: 0 never written, odd while written, even when whole
generation            8       one more than the generation, so that 0 means never written
epoch                 4       the buffer's epoch at the write; 0 never written
writer                4       number of the writer whose record it is
previous              8       one more than the cursor of that writer's previous record; 0 for none
====================  ======  ==========================================================================

Who writes: ``begin``/``begin_list`` and ``end``/``end_list``, under the lock, for slots that a journal entry names and
no other entry does. Order: revision to the next greater odd, then generation and epoch, then (outside, after the lock)
the bytes, then revision to the next even. No word is ever lowered. A reader sees an odd revision, or two different
ones around its gather, whenever bytes may be mixed. A writer that dies between leaves the revision odd: no record.
"""

import numpy as np

from ..shm.points import locked_point
from ..shm.table import S_GENERATION, S_PREVIOUS, S_REVISION


class Stamps:
    """Views on the stamps of a segment, and the arithmetic on them."""

    def __init__(self, segment):
        self.rows = segment.stamps
        self.revision = segment.stamps[:, S_REVISION]
        self.generation = segment.stamps[:, S_GENERATION]
        self.epoch = segment.stamps32[:, 4]
        self.writer = segment.stamps32[:, 5]
        self.previous = segment.stamps[:, S_PREVIOUS]

    def begin(self, held, where, epoch: int, writer: int, previous) -> None:
        """Mark the slots at ``where`` (a slice or an index array) as being written."""
        revision = self.revision[where] + 1
        revision |= 1
        self.revision[where] = revision
        if locked_point:
            locked_point("shmreplay.locked.stamps.odd")
        if epoch == 1:  # no slot can have an older epoch
            self.generation[where] += 1
        else:
            self.generation[where] = self._next_generation(where, epoch)
        if locked_point:
            locked_point("shmreplay.locked.stamps.generation")
        self.epoch[where] = epoch
        self.writer[where] = writer
        self.previous[where] = previous
        if locked_point:
            locked_point("shmreplay.locked.stamps.marked")

    def _next_generation(self, where, epoch: int):
        """Public generation + 1 at ``epoch``, stored plus one."""
        old = self.epoch[where]
        moved = np.where(old > 0, epoch - old.astype(np.int64), 0)
        return self.generation[where] + moved + 1

    def end(self, held, where) -> None:
        """Make the slots at ``where`` whole; again for whole ones is harmless (a repeated recovery)."""
        self.revision[where] |= 1
        self.revision[where] += 1
        if locked_point:
            locked_point("shmreplay.locked.stamps.whole")

    def whole_count(self, where, epoch: int) -> int:
        """How many slots at ``where`` hold a record."""
        revision = self.revision[where]
        whole = ((revision & 1) == 0) & (revision != 0) & (self.epoch[where] == epoch)
        return int(np.count_nonzero(whole))

    def take(self, slots: np.ndarray) -> np.ndarray:
        """The rows of ``slots``, int64 [n, 4]; slots must be in range."""
        return self.rows.take(slots, 0, None, "clip")

    def public(self, slots: np.ndarray, epoch: int) -> np.ndarray:
        """Generations of ``slots`` (int64, any values): -1 where never written or out of range."""
        inside = (slots >= 0) & (slots < self.rows.shape[0])
        at = np.where(inside, slots, 0)
        old = self.epoch[at].astype(np.int64)
        generation = self.generation[at] - 1 + np.where(old > 0, epoch - old, 0)
        return np.where(inside, generation, -1)


def whole(rows: np.ndarray, epoch: int) -> np.ndarray:
    """Which of the gathered stamp rows name a record at ``epoch``; bool [n]."""
    revision = rows[:, S_REVISION]
    return ((revision & 1) == 0) & (revision != 0) & (rows.view(np.int32)[:, 4] == epoch)


def all_whole(rows: np.ndarray, epoch: int) -> bool:
    """Whether every row names a record; the quick form of ``whole(rows, epoch).all()``."""
    odd = np.bitwise_or.reduce(rows[:, S_REVISION]) & 1
    return not odd and bool((rows.view(np.int32)[:, 4] == epoch).all())
