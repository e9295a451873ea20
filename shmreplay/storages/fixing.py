"""How the layout of the records is fixed: by the first write, in whichever process makes it.

Header words: LAYOUT_STATE goes NONE -> CREATING (owner) -> READY (digest, written before the state). Who creates writes
temporary files and renames them, outside the lock; if it dies, whoever comes next finds a dead owner in CREATING and
starts over; if it is interrupted, it sets NONE again. Who loses the race reads the layout and validates its data
against it before anything changes. Threads of one process take turns at an in-process lock.
"""

import os
import time

import numpy as np

from ..errors import LayoutError
from ..records import RecordLayout
from ..shm import table
from ..shm.lock import section
from ..shm.points import locked_point, point
from ..shm.table import (
    H_LAYOUT_DIGEST, H_LAYOUT_INC, H_LAYOUT_ROW, H_LAYOUT_STATE, LAYOUT_CREATING, LAYOUT_NONE, LAYOUT_READY,
)  # fmt: skip


class Fixing:
    """The half of a byte storage that agrees on a layout: needs ``segment``, ``ring``, and how records are made."""

    def _known_layout(self) -> RecordLayout | None:
        """The layout that some process has fixed, mapped here; None if no write was made yet."""
        if self._layout is None and self.segment.words[H_LAYOUT_STATE] == LAYOUT_READY:
            self._map_known()
        return self._layout

    def _map_known(self) -> None:
        with self.segment.layout_lock:
            if self._layout is not None:
                return
            with open(os.path.join(self._records_folder(), "layout.json")) as file:
                layout = RecordLayout.from_json(file.read())
            found = self.segment.words[H_LAYOUT_DIGEST : H_LAYOUT_DIGEST + 4].tolist()
            if found != _digest_words(layout):
                raise LayoutError(f"{self._records_folder()}/layout.json is not the layout that the buffer was made with")
            self._map(layout)

    def _fix_layout(self, layout: RecordLayout) -> RecordLayout:
        """Make ``layout`` the storage's, unless another process or thread is faster; returns the one that holds."""
        with self.segment.layout_lock:
            return self._known_layout() or self._fix_first(layout)

    def _fix_first(self, layout: RecordLayout) -> RecordLayout:
        try:
            while not self._begin_layout():
                known = self._known_layout()
                if known is not None:
                    return known
                words = self.segment.words
                self.ring.check_limits("Replay buffer did not get its layout")
                self.ring.probe(words[H_LAYOUT_ROW], words[H_LAYOUT_INC])
                time.sleep(0.0005)
            point("shmreplay.layout.begun")
            self._create_records(layout)
            point("shmreplay.layout.created")
            self._map(layout)  # first, so that no thread finds it READY and not mapped
            self._end_layout(layout)
        finally:
            try:
                self._give_up_layout()
            except BaseException:
                self.ring.debts.append((self._give_up_layout,))
                self.ring.pay_debts()
                raise
        point("shmreplay.layout.ready")
        return layout

    @section
    def _begin_layout(self) -> bool:
        """Become the one who creates the records; False if they are there or a living process creates them."""
        segment, words = self.segment, self.segment.words
        at = (table.MEMBERS >> 3) + 8 * words[H_LAYOUT_ROW] + table.M_INC
        try:
            segment.lock.acquire()
            creating = words[H_LAYOUT_STATE] == LAYOUT_CREATING and words[at] == words[H_LAYOUT_INC]
            if words[H_LAYOUT_STATE] == LAYOUT_READY or creating:
                return False
            words[H_LAYOUT_STATE] = LAYOUT_NONE
            words[H_LAYOUT_ROW], words[H_LAYOUT_INC] = segment.row, segment.inc
            if locked_point:
                locked_point("shmreplay.locked.layout.owner")
            words[H_LAYOUT_STATE] = LAYOUT_CREATING
            if locked_point:
                locked_point("shmreplay.locked.layout.creating")
            return True
        finally:
            segment.lock.here.unlock()

    @section
    def _end_layout(self, layout: RecordLayout) -> None:
        segment, words, digest = self.segment, self.segment.words, _digest_words(layout)
        try:
            segment.lock.acquire(True)
            for i in range(4):
                words[H_LAYOUT_DIGEST + i] = digest[i]
            if locked_point:
                locked_point("shmreplay.locked.layout.digest")
            words[H_LAYOUT_STATE] = LAYOUT_READY
            if locked_point:
                locked_point("shmreplay.locked.layout.ended")
        finally:
            segment.lock.here.unlock()

    def _give_up_layout(self) -> None:
        """Let others create the records, unless they are there; nothing if this process does not create them."""
        with self.segment.layout_lock:
            self._unset_creating()

    @section
    def _unset_creating(self) -> None:
        segment, words = self.segment, self.segment.words
        try:
            segment.lock.acquire(True)
            mine = (words[H_LAYOUT_ROW], words[H_LAYOUT_INC]) == (segment.row, segment.inc)
            if words[H_LAYOUT_STATE] == LAYOUT_CREATING and mine:
                words[H_LAYOUT_STATE] = LAYOUT_NONE
                self._layout = None
        finally:
            segment.lock.here.unlock()


def _digest_words(layout: RecordLayout) -> list[int]:
    return np.frombuffer(bytes.fromhex(layout.digest), np.int64)[:4].tolist()
