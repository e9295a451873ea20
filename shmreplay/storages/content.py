"""A storage's content as a value: for pickling an unshared one, for copies, and for moving into shared memory."""

import weakref

import numpy as np

from ..shm import table
from ..shm.segment import Segment
from ..shm.table import W_CLAIMED, W_GATE, W_NEXT_INC, W_OPEN, W_OPEN_ODD, W_SLEEPERS


class Content:
    """The half of a storage that travels: needs ``segment``, ``state``, ``ring`` and the records of its kind."""

    def __getstate__(self) -> dict:
        """A shared storage travels as a handle; an unshared one with its content."""
        state = {"class_state": self._local_state(), "max_size": self.max_size}
        if self.is_shared:
            return state | {"path": self.segment.path}
        return state | {"content": self.content()}

    def __setstate__(self, state: dict) -> None:
        self._rng, self._stream, self._stream_inc = None, None, None
        self._unpickled = "path" in state
        self._buffers = weakref.WeakSet()
        self.max_size = state["max_size"]
        self.__dict__.update(state["class_state"])
        if "path" in state:
            self._attach_segment(Segment.attach(state["path"]))
        else:
            self._bind(self._new_segment())
            self._take_content(state["content"])

    def __deepcopy__(self, memo):
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        state = {"class_state": self._local_state(), "max_size": self.max_size, "content": self.content()}
        other.__setstate__(state)
        return other

    def _attach_segment(self, segment: Segment) -> None:
        self._bind(segment)

    def _local_state(self) -> dict:
        """Attributes of this object that belong to no segment."""
        return {}

    def content(self) -> dict:
        """Everything in private copies: words, ledgers, stamps, records; one moment, writers held off."""
        return self.ring.holding(self._content)

    def _content(self) -> dict:
        segment, claimed, words = self.segment, self.ring.words[W_CLAIMED], []
        ledgers = table.LEDGERS + table.LEDGER_NBYTES * len(self.state.used_ledgers())

        def copy_small(held, _):
            words.append(segment.control[table.OP : table.UNDO].copy())
            words.append(segment.control[table.LEDGERS : ledgers].copy())

        self.ring.set_words(copy_small)
        return {
            "words": words[0],
            "ledgers": words[1],
            "stamps": segment.stamps[:claimed].copy(),
            "records": self._records_content(claimed),
        }

    def _records_content(self, claimed: int):
        """Private copies of the records in the first ``claimed`` slots."""
        raise NotImplementedError

    def _take_records(self, records, claimed: int) -> None:
        """Put what ``_records_content`` gave; the segment is new and nobody else has it."""
        raise NotImplementedError

    def _take_content(self, content: dict) -> None:
        segment, saved = self.segment, content["words"].view(np.int64)
        claimed = int(saved[((table.WORDS - table.OP) >> 3) + W_CLAIMED])
        inc = self.ring.words[W_NEXT_INC]
        segment.control[table.OP : table.UNDO] = content["words"]
        segment.words[table.OP >> 3] = 0
        for word in (W_CLAIMED, W_GATE, W_OPEN, W_OPEN_ODD, W_SLEEPERS):
            self.ring.words[word] = 0
        self.ring.words[W_NEXT_INC] = inc
        segment.control[table.LEDGERS : table.LEDGERS + content["ledgers"].size] = content["ledgers"]
        for ledger in self.state.used_ledgers():
            ledger.clear()
        self._take_records(content["records"], claimed)
        segment.stamps[:claimed] = content["stamps"]
