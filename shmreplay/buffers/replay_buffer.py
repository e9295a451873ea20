"""The replay buffer: conducts storage, sampler, writer and ledger. It holds no shared word of its own."""

import torch

from ..checks import as_count, as_deadline, as_ratio
from ..errors import ClosedError
from ..samplers import RandomSampler, Sampler
from ..shm.table import (
    B_LIMITED, B_MAX_AHEAD, B_MIN_SIZE, R_WRITE, W_CLOSED, W_DEAD, W_LEN, W_RECOVERIES, W_WRITES,
)  # fmt: skip
from ..state.ledger import Claim
from ..storages import ListStorage, Storage
from ..writers import RoundRobinWriter, Writer
from .handle import Handle
from .limited import limits_of
from .sampling import Sampling
from .snapshot import Snapshot

__all__ = ["ReplayBuffer"]


class ReplayBuffer(Sampling, Handle, Snapshot):
    """Experience replay whose whole state can be shared by many processes.

    Unshared, it lives in private memory and serves the threads of one process. After ``share()`` (or with
    ``shared=True``) records, stamps, counters and budget are in shared memory: every process that holds the buffer,
    by pickling, fork or ``shmreplay.attach(path)``, sees the same, and none can hurt the others by dying.

    Mutable: ``_closed`` (local, set by ``shutdown``); everything else is shared state behind storage and ledger or
    fixed at construction.

    Args (all keyword-only):
        storage (Storage or callable, optional): where records lie. Default: ``ListStorage(1000)``.
        sampler (Sampler or callable, optional): default: ``RandomSampler()``.
        writer (Writer or callable, optional): default: ``RoundRobinWriter()``.
        collate_fn (callable, optional): applied to each sampled batch.
        batch_size (int, optional): records a sample; ``sample(n)`` overrides it.
        generator (torch.Generator, optional): draws of this process.
        shared (bool): share at once. Default False.
        samples_per_insert (int, float or Fraction, optional): at most so many records are sampled for each record
            inserted, counted over all processes and over the buffer's life.
        min_size_to_sample (int, optional): no sample before so many records are there.
        max_inserts_ahead (int, optional): writers wait while ``inserted - returned / samples_per_insert`` would
            exceed it; needs ``samples_per_insert``. They never wait while ``min_size_to_sample`` is unmet or a
            waiting sampler needs inserts.

    Raises:
        TypeError, ValueError: on arguments that can never work.

    Source: ``torchrl.data.ReplayBuffer``; the last three arguments are new.

    Example:
        >>> import torch
        >>> from shmreplay import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
        >>> rb.extend(torch.arange(5))
        tensor([0, 1, 2, 3, 4])
        >>> rb.sample().shape
        torch.Size([4])
    """

    _label_samples = False
    _default_writer = RoundRobinWriter

    def __init__(
        self,
        *,
        storage=None,
        sampler=None,
        writer=None,
        collate_fn=None,
        batch_size: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        samples_per_insert=None,
        min_size_to_sample: int | None = None,
        max_inserts_ahead: int | None = None,
    ):
        self._batch_size = None if batch_size is None else as_count(batch_size, "batch_size")
        ratio = None if samples_per_insert is None else as_ratio(samples_per_insert)
        self._storage = _made(storage, Storage, ListStorage, "storage")
        _check_limits(ratio, min_size_to_sample, max_inserts_ahead, self._storage.max_size)
        self._sampler = _made(sampler, Sampler, RandomSampler, "sampler")
        self._writer = _made(writer, Writer, self._default_writer, "writer")
        self._collate_fn = collate_fn
        self._warned = False
        self._closed = False
        self._rng = None
        self._storage.attach(self)
        self._writer.register_storage(self._storage)
        self._ledger_index = self._storage.state.add_ledger().index
        self._bind()
        words = self._ledger.words
        words[B_MIN_SIZE], words[B_MAX_AHEAD] = min_size_to_sample or 0, max_inserts_ahead or 0
        words[B_LIMITED] = 1 if ratio is not None else 2 if min_size_to_sample else 0
        self._ledger.set_ratio(ratio)
        if generator is not None:
            self.set_rng(generator)
        if self._storage.is_shared:
            self._publish()
        elif shared:
            self.share()

    def _bind(self) -> None:
        """Look the parts up again after the storage moved."""
        self._ledger = self._storage.state.ledgers[self._ledger_index]
        self._ring = self._storage.ring
        self._segment = self._storage.segment

    # -- parts -------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        """Where the records lie."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """Which slots a batch is made of."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """Which slots a write takes."""
        return self._writer

    @property
    def batch_size(self) -> int | None:
        """Records a sample, unless ``sample`` is told otherwise."""
        return self._batch_size

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw with ``generator`` in this process. Source: ``ReplayBuffer.set_rng``."""
        self._rng = generator
        self._storage.set_rng(generator)
        self._sampler._rng = self._writer._rng = generator

    @property
    def initialized(self) -> bool:
        """Always True: there is no delayed construction."""
        return True

    # -- writing -----------------------------------------------------------------------------------------------

    def add(self, data, *, timeout: float | None = None, cancel_event=None) -> int:
        """Write one record.

        Args:
            data: a TensorDict, tensorclass, tensor or pytree without a batch dimension.
            timeout (float, optional): seconds to wait for ``max_inserts_ahead`` or for slots in flight.
            cancel_event (optional): ends the wait when ``is_set()``.

        Returns:
            Its slot.

        Raises:
            LayoutError, LayoutKeyError, LayoutTypeError: it does not fit the layout; nothing changed.
            SampleTimeoutError, ClosedError: the wait ended.
        """
        return self._write(self._writer.add, data, 1, timeout, cancel_event)

    def extend(self, data, *, update_priority: bool | None = None, timeout: float | None = None, cancel_event=None):
        """Write several records; a root list is several records, a root tuple is a pytree.

        Another process sees each record whole or not at all. Runs of up to a quarter of the capacity lie in
        successive slots.

        Args:
            data: batched along dimension 0, or a list of records.
            update_priority: not supported in this class.
            timeout (float, optional): seconds to wait for ``max_inserts_ahead`` or for slots in flight.
            cancel_event (optional): ends the wait when ``is_set()``.

        Returns:
            int64 tensor [n] of slots, in the order of the records.

        Raises:
            LayoutError, LayoutKeyError, LayoutTypeError: it does not fit the layout; nothing changed.
            RuntimeError: no record given.
            SampleTimeoutError, ClosedError: the wait ended.
        """
        if update_priority is not None:
            raise NotImplementedError("update_priority is not supported in this class.")
        if self._ledger.words[B_MAX_AHEAD]:
            return self._extend_in_parts(data, timeout, cancel_event)
        return self._write(self._writer.extend, data, 0, timeout, cancel_event)

    def _extend_in_parts(self, data, timeout, cancel_event):
        n, most = _length(data), self._ledger.words[B_MAX_AHEAD]
        if n <= most:
            return self._write(self._writer.extend, data, n, timeout, cancel_event)
        if isinstance(data, (tuple, dict)):
            raise ValueError(f"{n} records can never be admitted with max_inserts_ahead={most}: write fewer at once.")
        parts = (data[start : start + most] for start in range(0, n, most))
        return torch.cat([self._write(self._writer.extend, part, len(part), timeout, cancel_event) for part in parts])

    def _write(self, write, data, n: int, timeout, cancel_event):
        if self._closed:
            raise ClosedError("A shut down replay buffer cannot be written.")
        ahead = n if self._ledger.words[B_MAX_AHEAD] else 0
        if not ahead and timeout is None and cancel_event is None:
            index = write(data)
        else:
            index = self._write_bounded(write, data, ahead, timeout, cancel_event)
        return index

    def _write_bounded(self, write, data, ahead: int, timeout, cancel_event):
        claim, ring = Claim(R_WRITE, ahead), self._ring
        call, limits = limits_of(self, timeout, cancel_event), ring.limits
        before = limits.call
        try:
            limits.call = call
            if ahead:
                self._ledger.admit(claim, True)
            return write(data)
        finally:
            limits.call = before
            try:
                self._ledger.settle(claim, 0)
            except BaseException:
                ring.debts.append((self._ledger.settle, claim, 0))
                ring.pay_debts()
                raise

    # -- reading -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._ring.words[W_LEN]

    def __getitem__(self, index):
        """Private copies of whole records: an int gives one, slices and tensors a batch, a key that field of all.

        Raises:
            IndexError: a slot without a record.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(k, str) for k in index)):
            return self[:][index]
        return self._storage.get(index, self._storage.build)

    def __iter__(self):
        if self._batch_size is None:
            raise RuntimeError("Cannot iterate over the replay buffer. Batch_size was not specified at construction.")
        while not self._sampler.ran_out:
            yield self.sample()

    @property
    def write_count(self) -> int:
        """Records written since the last ``empty()``, by all processes."""
        return self._ring.words[W_WRITES]

    def stats(self) -> dict:
        """A snapshot of counters and gauges, as TorchRL's; cheap, and the same in every process.

        Beyond TorchRL's keys: ``waiting`` (calls of ``sample`` that wait), ``live_members`` (attached processes),
        ``recovered`` (operations that a dead or interrupted holder of the lock had left), ``dead_members``.
        """
        if self._segment.row < 0:
            self._segment.seat()
        words, ledger, capacity = self._ring.words, self._ledger, self._storage.max_size
        moment = ledger.moment()
        size, written, returned = moment["size"], moment["written"], moment["returned"]
        stats = {
            "size": size,
            "storage_size": moment["extent"],
            "sampleable_size": size,
            "write_count": written,
            "sample_calls": moment["calls"],
            "samples_returned": returned,
            "prefetch_queue_size": 0,
            "initialized": True,
            "capacity": capacity,
            "utilization": size / capacity,
            "waiting": moment["waiting"],
            "live_members": self._segment.members.live_count() if self._segment.members is not None else 1,
            "recovered": words[W_RECOVERIES],
            "dead_members": words[W_DEAD],
        }
        if ledger.words[B_LIMITED] == 1:
            stats |= {
                "target_samples_per_insert": moment["ratio"],
                "samples_per_insert": returned / written if written else 0.0,
                "sample_budget": moment["budget"],
                "reserved_samples": moment["reserved"],
                "sample_wait_count": moment["waits"],
            }
        return stats

    # -- ratio -------------------------------------------------------------------------------------------------

    @property
    def samples_per_insert(self) -> float | None:
        """The shared ratio; None without a limit. Assigning changes it in every process and wakes who waits."""
        return self._ledger.ratio() if self._ledger.words[B_LIMITED] == 1 else None

    @samples_per_insert.setter
    def samples_per_insert(self, value) -> None:
        if self._ledger.words[B_LIMITED] != 1:
            raise RuntimeError("this replay buffer was made without a ratio: pass samples_per_insert at construction")
        self._ledger.set_ratio(as_ratio(value, allow_inf=True))

    # -- life --------------------------------------------------------------------------------------------------

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all records, at once and in every process; every handle is stale from then on.

        Args:
            empty_write_count (bool): zero ``write_count`` and the returned samples too; both or neither, so that the
                ratio goes on right.

        Source: ``ReplayBuffer.empty``, which zeroes the writes only: its limiter then stalls.
        """
        self._writer._empty(empty_write_count)
        self._sampler._empty()

    def start(self):
        """Return this buffer. Source: ``ReplayBuffer.start``.

        Raises:
            RuntimeError: it was shut down.
        """
        if not self.is_alive:
            raise ClosedError("A shut down replay buffer cannot be restarted.")
        return self

    @property
    def is_alive(self) -> bool:
        """Whether neither this handle nor the whole buffer was shut down."""
        return not (self._closed or self._ring.words[W_CLOSED])

    def client(self):
        """Return this buffer: every handle is one. Source: ``ReplayBuffer.client``."""
        return self

    @property
    def service_backend(self) -> str:
        """Always "direct"."""
        return "direct"

    def shutdown(self, timeout: float | None = None, *, everywhere: bool = False) -> None:
        """Close this process's handle: its waits raise ``RuntimeError``, ``is_alive`` is False.

        Args:
            timeout: accepted; nothing runs in the background.
            everywhere (bool): end waits and writes in every process.
        """
        as_deadline(timeout)
        self._closed = True
        if everywhere:
            self._ring.close()

    def synchronize(self) -> None:
        """Return: nothing runs in the background."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(\n    storage={self._storage!r},\n    sampler={self._sampler!r},\n"
            f"    writer={self._writer!r},\n    batch_size={self._batch_size})"
        )


def _made(given, kind: type, default, name: str):
    if given is None:
        return default()
    if not isinstance(given, kind) and callable(given):
        given = given()
    if not isinstance(given, kind):
        raise TypeError(f"{name} must be either a {kind.__name__} or a callable returning a {name} instance.")
    return given


def _check_limits(ratio, min_size, max_ahead, capacity: int) -> None:
    if min_size is not None and as_count(min_size, "min_size_to_sample") > capacity:
        raise ValueError(f"min_size_to_sample={min_size} can never be met: the storage holds {capacity} records.")
    if max_ahead is not None:
        as_count(max_ahead, "max_inserts_ahead")
        if ratio is None:
            raise ValueError("max_inserts_ahead needs samples_per_insert: it counts inserts that were not sampled yet.")


def _length(data) -> int:
    if isinstance(data, (tuple, dict)):
        values = list(data.values()) if isinstance(data, dict) else data
        return _length(values[0])
    return len(data)
