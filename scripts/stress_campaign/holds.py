"""How long a thread holds the buffer's lock: its acquire and unlock are wrapped while a run measures.

The wrapper's own two clock readings are in the figure. It is a Python call, at which the interpreter may switch threads;
so the figure errs on the long side.
"""

import time

import numpy as np

COUNT, P50, P99, LONGEST = range(4)
_KEPT = 1 << 16


class HoldTimes:
    """Writes count, median, 99th percentile and maximum (ns) of the last holds into `row` when removed.

    Made, installed and removed by the one thread that uses the buffer.
    """

    def __init__(self, buffer, row: np.ndarray) -> None:
        self._lock, self._row = buffer.storage.segment.lock, row
        self._acquire, self._unlock = self._lock.acquire, self._lock.here.unlock
        self._times: list[int] = []
        self._acquired = 0

    def install(self) -> None:
        """Measure from now on."""
        original, free, times = self._acquire, self._unlock, self._times

        def acquire(*arguments):
            held = original(*arguments)
            self._acquired = time.perf_counter_ns()
            return held

        def unlock():
            free()
            times.append(time.perf_counter_ns() - self._acquired)
            if len(times) > 2 * _KEPT:
                del times[:_KEPT]

        self._lock.acquire, self._lock.here.unlock = acquire, unlock

    def remove(self) -> None:
        """Measure no more, and write the figures."""
        del self._lock.acquire
        self._lock.here.unlock = self._unlock
        if self._times:
            times = np.array(self._times[-_KEPT:])
            self._row[:] = len(times), np.median(times), np.percentile(times, 99), times.max()
