"""What every storage does: slots, stamps and reads that never mix two records. Where the records lie is below."""

import os
import threading
import weakref

import numpy as np
import torch

from ..shm.segment import Segment
from ..shm.table import LIST_SLOTS, W_CLAIMED, W_CURSOR, W_EPOCH, W_EXTENT, W_LEN, W_WRITES
from ..state.recovery import State
from ..state.ring import Write, Writing
from .content import Content
from .reading import Reading

NEVER_STORED = frozenset({"index", "index_generation"})  # root keys of samples that are written again


_state_lock = threading.Lock()


def state_of(segment: Segment) -> State:
    """The one State of a segment in this process."""
    with _state_lock:
        known = getattr(segment, "state_ref", None)
        state = known() if known is not None else None
        if state is None:
            state = State(segment)
            segment.state_ref = weakref.ref(state)
        return state


def _after_fork_in_child() -> None:
    global _state_lock
    _state_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Storage(Content, Reading):
    """Base of the storages; also the base for user classes.

    A storage owns the segment: records, stamps, ring and ``write_count``. Several buffers may use one storage; they
    share the ring, and each has a ledger of its own.

    Mutable: ``state``/``ring`` (replaced by ``share``), the random stream of this process; all else is shared state
    behind ``ring`` or fixed at construction.

    Args:
        max_size (int): number of slots.

    Source: ``torchrl.data.Storage``. ``rb.storage[...]`` returns private copies, never live views.
    """

    ndim = 1
    device = torch.device("cpu")
    can_share = False

    def __init__(self, max_size: int, *, compilable: bool = False):
        if isinstance(max_size, bool) or not isinstance(max_size, (int, np.integer)):
            raise TypeError(f"max_size must be a positive integer. Got {max_size!r}.")
        if max_size < 1:
            raise ValueError(f"max_size must be a positive integer. Got {max_size}.")
        self.max_size = int(max_size)
        self._rng = None
        self._stream, self._stream_inc = None, None
        self._unpickled = False
        self._buffers = weakref.WeakSet()
        self._bind(self._new_segment())

    def _bind(self, segment: Segment) -> None:
        self.state = state_of(segment)
        self.segment = segment
        self.ring = self.state.ring

    def _new_segment(self) -> Segment:
        return Segment.private(self.max_size)

    # -- what a kind of storage fills in -----------------------------------------------------------------------

    def stage(self, data, *, batched: bool):
        """Check and convert ``data``; raises before anything changes. Returns an object with ``n``."""
        raise NotImplementedError

    def prepare(self, example) -> bool:
        """Be ready to claim rows for records like the batch ``example`` (None: unknown); False if that cannot be."""
        return True

    def _put(self, where, staged, offset: int, n: int) -> None:
        """Copy ``n`` staged records from ``offset`` on to the slots ``where`` (a slice or an index array)."""
        raise NotImplementedError

    def _gather(self, slots: np.ndarray, chunk=None):
        """The records of ``slots`` as a chunk, a private copy; in the memory of ``chunk`` if that is given."""
        raise NotImplementedError

    def _regather(self, chunk, at: np.ndarray, slots: np.ndarray) -> None:
        """Replace the records at positions ``at`` of a chunk by those of ``slots``."""
        raise NotImplementedError

    def _keep(self, chunk, kept: np.ndarray):
        """The chunk's records at the positions ``kept``."""
        raise NotImplementedError

    def build(self, chunk):
        """The user's structure over a chunk; batch dimension first."""
        raise NotImplementedError

    def build_one(self, chunk):
        """The single record of a chunk of one."""
        raise NotImplementedError

    def claim_rows(self, start: int, rows: int) -> None:
        """Claim rows ``start`` to ``rows`` of records and stamps; a step more where there is room."""
        self.ring.claimed(min(self.max_size, max(rows, start + 1024)))

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, data, writing: Writing, *, batched: bool, slots: np.ndarray | None = None) -> np.ndarray:
        """Stage ``data`` and write it at the cursor, or to ``slots``; returns the slots, int64 [n]."""
        limits = self.ring.limits
        limits.depth += 1
        try:
            if limits.depth > 1:
                self._set_aside()
            staged = self.stage(data, batched=batched)
            if slots is None:
                return self.append(staged, writing)
            if slots.size != staged.n:
                raise ValueError(f"write_at got {slots.size} indices for {staged.n} records; give one index a record")
            self.write_at(slots, staged, writing)
            return slots
        finally:
            limits.depth -= 1

    def _set_aside(self) -> None:
        """Called in a handler that writes while its thread is in the middle of a write: keep what that one staged."""

    def append(self, staged, writing: Writing) -> np.ndarray:
        """Write staged records at the cursor; returns their slots, int64 [n], in order.

        Runs of at most a quarter of the ring are contiguous; each record appears as a whole, in order of commits.
        """
        ring, n, done = self.ring, staged.n, 0
        if n <= ring.quarter:
            start = self._append_run(staged, 0, n, writing)
            slots = np.arange(start, start + n)
            return slots % ring.capacity if start + n > ring.capacity else slots
        parts = []
        while done < n:
            size = min(n - done, ring.quarter)
            start = self._append_run(staged, done, size, writing)
            parts.append(np.arange(start, start + size) % ring.capacity)
            done += size
        return np.concatenate(parts)

    def _append_run(self, staged, offset: int, n: int, writing: Writing) -> int:
        write = Write(n, None, self.claim_rows, writing)
        return self.ring.guarded(write, lambda: self._fill_run(write, staged, offset))

    def _fill_run(self, write: Write, staged, offset: int) -> int:
        ring, n = self.ring, write.n
        ring.reserve(write)
        start = write.start % self.max_size
        first = min(n, self.max_size - start)
        self._put(slice(start, start + first), staged, offset, first)
        if first < n:
            self._put(slice(0, n - first), staged, offset + first, n - first)
        ring.commit(write)
        return start

    def write_at(self, slots: np.ndarray, staged, writing: Writing) -> None:
        """Write staged records to named slots (int64 [n]); a slot named twice is written twice, in order."""
        if slots.size and (slots.min() < 0 or slots.max() >= self.max_size):
            raise IndexError(f"write_at: index is out of bounds, 0 to {self.max_size - 1}. Got {slots.tolist()}.")
        limit = min(LIST_SLOTS, self.ring.quarter)
        done = 0
        while done < slots.size:
            part = slots[done : done + limit]
            _, first = np.unique(part, return_index=True)
            if first.size < part.size:  # up to the first repetition
                repeated = np.setdiff1d(np.arange(part.size), first)
                part = part[: repeated.min()]
            write = Write(part.size, part, self.claim_rows, writing)
            self.ring.guarded(write, lambda: self._fill_list(write, staged, done))
            done += part.size

    def _fill_list(self, write: Write, staged, offset: int) -> None:
        self.ring.reserve(write)
        self._put(write.slots, staged, offset, write.n)
        self.ring.commit(write)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, index, build=None):
        """The record (int) or records (slice, tensor, list, array, bool mask) at ``index``; a private copy.

        A slice leaves holes out; other indices raise IndexError for a slot without a record. ``build`` makes several
        records out of a chunk; default: as this storage hands them out.
        """
        self._check_seat()
        build = build or self._built
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        extent = self.ring.words[W_EXTENT]
        if isinstance(index, slice):
            start, stop, step = index.indices(extent)
            chunk, _ = self.read_whole(np.arange(start, stop, step))
            return build(chunk)
        if index is None or index is Ellipsis:
            return self.get(slice(None), build)
        slots = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
        if slots.dtype == bool:
            slots = np.flatnonzero(slots)
        slots = slots.astype(np.int64)
        slots = np.where(slots < 0, slots + extent, slots)
        chunk = self.read_exactly(np.ascontiguousarray(slots.reshape(-1)))
        if slots.ndim == 0:
            return self.build_one(chunk)
        return build(chunk)

    def _built(self, chunk):
        return self.build(chunk)

    def __getitem__(self, index):
        return self.get(index)

    def __iter__(self):
        for i in range(self.ring.words[W_EXTENT]):
            try:
                record = self.get(i)
            except IndexError:
                continue
            yield record

    def __len__(self) -> int:
        return self.ring.words[W_LEN]

    @property
    def _is_full(self) -> bool:
        return len(self) == self.max_size

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    def contains(self, item) -> bool:
        """Whether slot ``item`` holds a record."""
        if not 0 <= int(item) < self.ring.words[W_CLAIMED]:
            return False
        return bool(self.ring.stamps.whole_count(slice(int(item), int(item) + 1), self.ring.words[W_EPOCH]))

    __contains__ = contains

    def _max_size_along_dim0(self, *, single_data=None, batched_data=None) -> int:
        return self.max_size

    # -- stamps and counters -----------------------------------------------------------------------------------

    def generations(self, slots: np.ndarray) -> np.ndarray:
        """Public generations of ``slots``, int64; -1 where never written or out of range."""
        words = self.ring.words  # unclaimed stamps must not be touched, not even read: the file system may be full
        return self.ring.stamps.public(np.where(slots < words[W_CLAIMED], slots, -1), words[W_EPOCH])

    @property
    def write_count(self) -> int:
        """Records written since the last ``empty()``."""
        return self.ring.words[W_WRITES]

    @property
    def cursor(self) -> int:
        """The slot that the next round-robin write takes."""
        return self.ring.words[W_CURSOR] % self.max_size

    def _empty(self, empty_write_count: bool = True) -> None:
        self.ring.empty(empty_write_count)

    # -- drawing -----------------------------------------------------------------------------------------------

    def _rand_given_ndim(self, batch_size: int) -> torch.Tensor:
        return torch.from_numpy(self.slots_at(self.uniform(batch_size)))

    def uniform(self, n: int) -> np.ndarray:
        """Numbers drawn from this process's stream, float64 [n] in [0, 1): places in the ring, whatever its extent."""
        return torch.rand(n, dtype=torch.float64, generator=self._generator()).numpy()

    def slots_at(self, places: np.ndarray) -> np.ndarray:
        """The slots at ``places`` of the present extent, int64; every slot is as likely as every other."""
        return (places * self.ring.words[W_EXTENT]).astype(np.int64)

    has_outlines = False

    def outline(self, n: int, more: dict):
        """The structure of ``n`` records to come, with ``more`` in it where it can be; if ``has_outlines``."""
        raise NotImplementedError

    def _generator(self) -> torch.Generator | None:
        """The generator of this process: the user's or torch's own where the buffer was made, else a stream apart."""
        if self._stream_inc == self.segment.inc:
            return self._stream
        inc = self.segment.inc
        if self._stream_inc is None and not self._unpickled and not self.segment.in_child:
            self._stream = self._rng
        else:
            seed = self._rng.initial_seed() if self._rng is not None else torch.initial_seed()
            mixed = np.random.SeedSequence([seed & (2**64 - 1), inc & (2**64 - 1), self.segment.row & 0xFFFF, os.getpid()])
            self._stream = torch.Generator().manual_seed(int(mixed.generate_state(1, np.uint64)[0]) & (2**63 - 1))
        self._stream_inc = inc
        return self._stream

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw with ``generator`` in this process; None for the default again."""
        self._rng = generator
        if generator is not None:
            self._check_seat()
            self._stream, self._stream_inc = generator, self.segment.inc
        else:
            self._stream_inc = None

    # -- sharing -----------------------------------------------------------------------------------------------

    def _check_seat(self) -> None:
        if self.segment.row < 0:
            self.segment.seat()

    @property
    def is_shared(self) -> bool:
        """Whether other processes can hold this storage."""
        return not self.segment.exclusive

    @property
    def path(self) -> str | None:
        """Where other processes attach; None while unshared."""
        return self.segment.path if self.is_shared else None

    def share(self) -> None:
        """Move into shared memory; overridden by storages that can."""
        raise RuntimeError(
            f"Cannot share a storage of type {type(self).__name__} between processes: its records are Python objects. "
            "Use LazyTensorStorage (shared memory) or LazyMemmapStorage (a disk)."
        )

    def attach(self, buffer) -> None:
        """Register a buffer that uses this storage. Source: ``Storage.attach``."""
        self._buffers.add(buffer)
