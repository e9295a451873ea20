"""One face for every buffer that the suite `records` measures. Runs in the contestants' interpreters.

An adapter knows ``add()``, ``extend(n)`` and ``sample(n)`` on data that it made beforehand, and ``fill()``.
``start_method`` is how its worker processes start; None if it cannot serve several processes.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from pathlib import Path

from bench_suites.workloads import WORKLOADS, Workload

SAMPLE_COUNT = 256


class Adapter:
    """Base: the records to write, which each process makes anew instead of having them sent."""

    start_method: str | None = None

    def __init__(self, workload: str, capacity: int) -> None:
        self.workload: Workload = WORKLOADS[workload]
        self.capacity = capacity
        self._batches: dict[int, object] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_batches": {}}

    def batch(self, count: int):
        """Return ``count`` records (0: one record without the leading dimension) in the contestant's own form."""
        if count not in self._batches:
            arrays = self.workload.records(max(count, 1))
            self._batches[count] = self.convert({name: a[0] for name, a in arrays.items()} if count == 0 else arrays)
        return self._batches[count]

    def convert(self, arrays: dict):
        return arrays

    def fill(self) -> None:
        """Write every slot once."""
        left = self.capacity
        while left:
            count = min(left, self.workload.fill_count)
            self.extend(count)
            left -= count
        self._batches.pop(self.workload.fill_count, None)

    def written_count(self) -> int | None:
        """Return how many records the buffer says were written by all processes; None if it does not count."""
        return None


class TorchApiAdapter(Adapter):
    """A buffer of TorchRL's API, from ``torchrl.data`` or from ``shmreplay``."""

    start_method = "spawn"

    def __init__(self, workload: str, capacity: int, module: str, kind: str, storage: str, scratch_dir: str) -> None:
        super().__init__(workload, capacity)
        api = importlib.import_module(module)
        if storage == "memmap":
            folder = Path(scratch_dir) / f"{module}-{kind}-{workload}"
            folder.mkdir(parents=True)
            memory = api.LazyMemmapStorage(capacity, scratch_dir=str(folder))
        else:
            memory = api.LazyTensorStorage(capacity)
        if kind == "tensordict":
            writer = api.TensorDictRoundRobinWriter(track_generations=True)
            buffer_class = api.TensorDictReplayBuffer
        else:
            writer = api.RoundRobinWriter()
            buffer_class = api.ReplayBuffer
        self.buffer = buffer_class(storage=memory, writer=writer, batch_size=SAMPLE_COUNT, shared=True)

    def convert(self, arrays: dict):
        import torch
        from tensordict import TensorDict

        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        dims = 0 if arrays["reward"].ndim == 1 else 1
        return TensorDict(tensors, batch_size=arrays["reward"].shape[:dims])

    def add(self) -> None:
        self.buffer.add(self.batch(0))

    def extend(self, count: int) -> None:
        self.buffer.extend(self.batch(count))

    def sample(self, count: int):
        return self.buffer.sample(count)

    def written_count(self) -> int:
        return self.buffer.write_count


class CpprbAdapter(Adapter):
    """cpprb's ReplayBuffer, or its MPReplayBuffer for several processes."""

    def __init__(self, workload: str, capacity: int, many: bool) -> None:
        super().__init__(workload, capacity)
        import cpprb

        fields = {
            name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in self.workload.fields.items()
        }
        self.start_method = "fork" if many else None
        self.buffer = (cpprb.MPReplayBuffer if many else cpprb.ReplayBuffer)(capacity, fields)

    def add(self) -> None:
        self.buffer.add(**self.batch(0))

    def extend(self, count: int) -> None:
        self.buffer.add(**self.batch(count))

    def sample(self, count: int):
        return self.buffer.sample(count)


class BareFieldsAdapter(Adapter):
    """One shared tensor per field, slice copies and ``index_select``; no bookkeeping, no lock, may tear."""

    start_method = "spawn"

    def __init__(self, workload: str, capacity: int) -> None:
        super().__init__(workload, capacity)
        import torch

        self.columns = {}
        for name, (dtype, shape) in self.workload.fields.items():
            self.columns[name] = torch.zeros((capacity, *shape), dtype=getattr(torch, dtype)).share_memory_()
        self.cursor = 0

    def convert(self, arrays: dict):
        import torch

        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    def _claim(self, count: int) -> int:
        if self.cursor + count > self.capacity:
            self.cursor = 0
        begin = self.cursor
        self.cursor += count
        return begin

    def add(self) -> None:
        slot = self._claim(1)
        for name, value in self.batch(0).items():
            self.columns[name][slot] = value

    def extend(self, count: int) -> None:
        begin = self._claim(count)
        for name, values in self.batch(count).items():
            self.columns[name][begin : begin + count] = values

    def sample(self, count: int):
        import torch

        drawn = torch.randint(self.capacity, (count,))
        return {name: column.index_select(0, drawn) for name, column in self.columns.items()}


class BarePackedAdapter(Adapter):
    """Rows of whole records in one array, gathered by one ``np.take``; fields are not split off."""

    ROW_NBYTES = 192

    def __init__(self, workload: str, capacity: int) -> None:
        super().__init__(workload, capacity)
        import numpy as np

        if self.workload.record_nbytes() > self.ROW_NBYTES:
            raise ValueError(f"records of {workload} do not fit into {self.ROW_NBYTES} bytes")
        self.rows = np.ones((capacity, self.ROW_NBYTES), dtype=np.uint8)
        self.rng = np.random.default_rng(0)
        self.cursor = 0

    def fill(self) -> None:
        """Nothing to do: the constructor touched every page."""

    def convert(self, arrays: dict):
        import numpy as np

        return np.zeros((len(arrays["reward"]), self.ROW_NBYTES), dtype=np.uint8)

    def extend(self, count: int) -> None:
        if self.cursor + count > self.capacity:
            self.cursor = 0
        self.rows[self.cursor : self.cursor + count] = self.batch(count)
        self.cursor += count

    def sample(self, count: int):
        drawn = (self.rng.random(count) * self.capacity).astype("int64")
        return self.rows.take(drawn, axis=0)


class BareLock:
    """A robust process-shared mutex through ctypes: what one crash-safe lock and unlock cost."""

    _SHARED, _ROBUST = 1, 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        attributes = ctypes.create_string_buffer(64)
        for step in (
            self._libc.pthread_mutexattr_init(attributes),
            self._libc.pthread_mutexattr_setpshared(attributes, self._SHARED),
            self._libc.pthread_mutexattr_setrobust(attributes, self._ROBUST),
            self._libc.pthread_mutex_init(self._mutex, attributes),
        ):
            if step:
                raise OSError(step, "the C library refused a robust process-shared mutex")

    def lock_unlock(self) -> None:
        self._libc.pthread_mutex_lock(self._mutex)
        self._libc.pthread_mutex_unlock(self._mutex)
