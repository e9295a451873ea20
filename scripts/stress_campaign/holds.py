"""How long a process holds the buffer's lock: its acquire and unlock are wrapped while a run measures.

The wrapper's own two clock readings are in the figure. It is a Python call, at which the interpreter may switch threads;
so the figure errs on the long side.
"""

import sys
import time

import numpy as np

from shmreplay.shm import lock as lock_module

COUNT, P50, P99, LONGEST = range(4)
_KEPT = 1 << 16


class HoldTimes:
    """Writes count, median, 99th percentile and maximum (ns) of the last holds into `row` when removed."""

    def __init__(self, row: np.ndarray) -> None:
        self._row = row
        self._times: list[int] = []
        self._acquired = 0
        self._kind = lock_module.RobustLock
        self._acquire, self._unlock = self._kind.acquire, lock_module.unlock

    def install(self) -> None:
        """Measure from now on, in this process; one thread at a time uses the buffer."""
        original, free, times = self._acquire, self._unlock, self._times

        def acquire(lock):
            held = original(lock)
            self._acquired = time.perf_counter_ns()
            return held

        def unlock(mutex):
            code = free(mutex)
            times.append(time.perf_counter_ns() - self._acquired)
            if len(times) > 2 * _KEPT:
                del times[:_KEPT]
            return code

        self._kind.acquire = acquire
        self._replace_unlock(self._unlock, unlock)

    def remove(self) -> None:
        """Measure no more, and write the figures."""
        self._kind.acquire = self._acquire
        self._replace_unlock(None, self._unlock)
        if self._times:
            times = np.array(self._times[-_KEPT:])
            self._row[:] = len(times), np.median(times), np.percentile(times, 99), times.max()

    def _replace_unlock(self, old, new) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("shmreplay") and hasattr(module, "unlock"):
                if old is None or module.unlock is old:
                    module.unlock = new
