"""In-memory snapshots of a buffer: ``state_dict`` and ``load_state_dict``.

Saving takes the gate: writers wait, samplers go on, and what is saved is one moment. Loading takes it too: it writes
records and stamps under the *next* epoch, where nobody sees them, and then makes that epoch the present one together
with cursor, counters and budget, in one operation. A loader that dies before that leaves the buffer empty, at an
epoch beyond; nothing half-loaded ever shows.
"""

import numpy as np
import torch

from ..errors import LayoutError
from ..shm.points import point
from ..shm.table import (
    B_BASE_CALLS, B_BASE_RETURNED, B_LIMITED, B_RETURNED, B_WAIT_COUNT, W_CLAIMED,
    W_CURSOR, W_EPOCH, W_EXTENT, W_FLOOR, W_GATE, W_LEN, W_OPEN_ODD, W_OPEN_SLOTS, W_WRITES,
)  # fmt: skip
from ..state.control import GATE_LOAD

__all__ = ["Snapshot"]


class Snapshot:
    """Saving and restoring a buffer's whole content in memory."""

    def state_dict(self) -> dict:
        """A snapshot: private copies of one moment, of records, stamps, cursor, counters and ratio.

        Contention: writers of all processes wait while it is taken; samplers go on.

        Source: ``ReplayBuffer.state_dict``, which aliases live memory.
        """
        storage, ledger = self._storage, self._ledger
        if self._segment.row < 0:
            self._segment.seat()
        words, (calls, returned, waits), data, slots, generation = self._ring.holding(self._moment)
        state = {
            "_storage": {"_storage": data, "_index": torch.from_numpy(slots), "_len": len(slots)},
            "_sampler": self._sampler.state_dict(),
            "_writer": {
                "_cursor": words[W_CURSOR] % storage.max_size,
                "_ring_cursor": words[W_CURSOR],
                "_write_count": words[W_WRITES],
                "_generation": torch.from_numpy(generation),
            },
            "_transforms": {},
            "_batch_size": self._batch_size,
            "_sample_calls": calls,
            "_sampled_items": returned,
            "_rng": (self._rng.get_state().clone(), str(self._rng.device)) if self._rng is not None else None,
        }
        if ledger.words[B_LIMITED] == 1:
            state["_rate_limit"] = {
                "samples_per_insert": ledger.ratio(),
                "numerator": ledger.pair()[0],
                "denominator": ledger.pair()[1],
                "_samples_returned": returned,
                "sample_wait_count": waits,
            }
        return state

    def _moment(self) -> tuple:
        """Words, totals, records, slots and generations, with no writer about."""
        storage, ring, words = self._storage, self._ring, []
        ring.set_words(lambda held, now: words.extend(now))
        data, slots = None, np.empty(0, np.int64)
        if words[W_CLAIMED]:  # also without a record: a loader needs the layout to restore generations
            chunk, slots = storage.read_whole(np.arange(words[W_EXTENT]))
            data = storage._built(chunk)
        generation = storage.generations(np.arange(words[W_CLAIMED]))
        return words, self._ledger.totals(), data, slots, generation

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore a snapshot, in every process at once; handles taken before are stale.

        Calls under way: a sample begun before is neither counted nor refunded; a write begun before is finished
        first. Generations never go back. If this process dies on the way the buffer is left empty.

        Raises:
            LayoutError, KeyError: the records do not fit the storage, or the write and sample counts are not both
                there; nothing changed.

        Source: ``ReplayBuffer.load_state_dict``, which is visible to other processes in part.
        """
        saved = _Saved(state_dict, self)
        storage, ring = self._storage, self._ring
        if self._segment.row < 0:
            self._segment.seat()
        staged = storage.stage(saved.data, batched=True) if saved.slots.size else None
        if staged is not None and staged.n != saved.slots.size:
            raise LayoutError(f"the snapshot has {staged.n} records for {saved.slots.size} slots")
        needed = max(saved.generation.size, saved.extent) if storage.prepare(saved.data) else 0
        if needed > ring.words[W_CLAIMED]:
            storage.claim_rows(ring.words[W_CLAIMED], needed)
        ring.holding(lambda: self._load_held(saved, staged, needed), GATE_LOAD)
        self._sampler.load_state_dict(state_dict["_sampler"])
        if state_dict.get("_batch_size") is not None:
            self._batch_size = state_dict["_batch_size"]
        if saved.rng is not None:
            generator = torch.Generator(device=saved.rng[1])
            generator.set_state(saved.rng[0])
            self.set_rng(generator)

    def _load_held(self, saved: "_Saved", staged, needed: int) -> None:
        point("shmreplay.load.held")
        self._write_next_epoch(saved, staged, needed)
        point("shmreplay.load.written")
        self._ring.set_words(lambda held, words: self._switch(held, words, saved), self._ledger.offset)  # opens the gate

    def _write_next_epoch(self, saved: "_Saved", staged, needed: int) -> None:
        """Write records and stamps for the epoch after the present one; the gate is held, nobody else writes."""
        stamps, epoch = self._ring.stamps, self._ring.words[W_EPOCH]
        slots = np.arange(needed)
        live = stamps.public(slots, epoch)
        wanted = np.full(needed, -1)
        size = min(needed, saved.generation.size)
        wanted[:size] = saved.generation[:size]
        wanted[saved.slots] = np.maximum(wanted[saved.slots], 0)
        slots = slots[wanted >= 0]
        wanted, live = wanted[slots], live[slots]
        revision = stamps.revision[slots] + 1
        stamps.revision[slots] = revision | 1
        stamps.generation[slots] = np.where(live < 0, wanted, np.maximum(wanted, live + 1)) + 1
        stamps.epoch[slots] = epoch + 1
        stamps.writer[slots] = 0
        stamps.previous[slots] = 0
        if staged is not None:
            self._storage._put(saved.slots, staged, 0, staged.n)
            stamps.revision[saved.slots] += 1

    def _switch(self, held, words, saved: "_Saved") -> None:
        """Make the loaded content the present one: scalar stores only."""
        ledger = self._ledger
        counted = ledger.counted()
        words[W_EPOCH] += 1
        words[W_CURSOR] = words[W_FLOOR] = saved.cursor
        words[W_EXTENT], words[W_LEN], words[W_WRITES] = saved.extent, saved.slots.size, saved.write_count
        words[W_OPEN_SLOTS] = words[W_OPEN_ODD] = words[W_GATE] = 0
        self._ring.state.emptied(held, False)
        ledger.words[B_RETURNED] = saved.returned
        ledger.words[B_BASE_RETURNED] = counted[1] - saved.returned
        ledger.words[B_BASE_CALLS] = counted[0] - saved.calls
        ledger.words[B_WAIT_COUNT] = saved.waits - counted[2]
        if saved.ratio is not None and ledger.words[B_LIMITED] == 1:
            ledger.store_pair(held, *saved.ratio)


class _Saved:
    """What a snapshot says, checked."""

    def __init__(self, state: dict, buffer):
        storage, writer = state["_storage"], state["_writer"]
        capacity = buffer._storage.max_size
        n = int(storage["_len"]) if "_len" in storage else len(storage["_index"])
        self.data = storage.get("_storage")
        index = storage.get("_index")
        self.slots = np.arange(n) if index is None else np.ascontiguousarray(index.numpy().astype(np.int64))
        if self.slots.size and (self.slots.min() < 0 or self.slots.max() >= capacity):
            raise LayoutError(f"the snapshot has records up to slot {self.slots.max()}, this storage {capacity} slots")
        self.cursor = int(writer.get("_ring_cursor", writer["_cursor"]))
        self.extent = int(self.slots.max()) + 1 if self.slots.size else 0
        if "_ring_cursor" not in writer and self.extent == capacity:
            self.cursor += capacity
        self.extent = max(self.extent, min(self.cursor, capacity))
        self.write_count = int(writer["_write_count"])
        generation = writer.get("_generation")
        self.generation = np.empty(0, np.int64) if generation is None else generation.numpy()[:capacity]
        self.calls, self.rng = int(state.get("_sample_calls", 0)), state.get("_rng")
        limit = state.get("_rate_limit")
        self.returned = int(state.get("_sampled_items", 0))
        self.waits, self.ratio = 0, None
        if buffer._ledger.words[B_LIMITED] == 1:
            if limit is None:
                raise KeyError("_rate_limit: the snapshot is of a buffer without samples_per_insert")
            self.returned = int(limit.get("_samples_returned", self.returned))
            self.waits = int(limit.get("sample_wait_count", 0))
            self.ratio = _ratio_of(limit)


def _ratio_of(limit: dict) -> tuple[int, int]:
    from ..checks import as_ratio

    if "numerator" in limit:
        return int(limit["numerator"]), int(limit["denominator"])
    ratio = as_ratio(limit["samples_per_insert"], allow_inf=True)
    return (0, 0) if ratio is None else (ratio.numerator, ratio.denominator)
