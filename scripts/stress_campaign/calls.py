"""How long calls took, and how much of that the thread stood in the kernel's queue for a core.

A thread that is ready to run but has no core is delayed by the machine, not by the buffer: the kernel counts those
nanoseconds (`schedstat`). Both figures are kept, and the raw one is what is reported first.
"""

import os
import time

import numpy as np

N_WORST = 8
STARTED, WALL, QUEUED, KIND = range(4)


class Stopwatch:
    """Times the calls of the thread that made it, and keeps the worst in `worst`.

    Args:
        worst: int64 `[N_WORST, 4]`: when it began (monotonic), how long, how long without a core, in ns, and its kind.
            The first row is the longest call, the others those that were held up the longest.
        least: shorter calls are not kept, in ns.
    """

    def __init__(self, worst: np.ndarray, least: int = 5_000_000) -> None:
        self._worst, self._least = worst, least
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._began = self._queued = 0

    def begin(self) -> None:
        """A call starts."""
        self._queued = self._delay()
        self._began = time.monotonic_ns()

    def end(self, kind: int) -> int:
        """It returned; how long it took, in ns."""
        wall = time.monotonic_ns() - self._began
        if wall > self._least:
            self._keep(wall, self._delay() - self._queued, kind)
        return wall

    def _keep(self, wall: int, queued: int, kind: int) -> None:
        longest, others = self._worst[0], self._worst[1:]
        if wall > longest[WALL]:
            longest[:] = self._began, wall, queued, kind
        row = others[(others[:, WALL] - others[:, QUEUED]).argmin()]
        if wall - queued > row[WALL] - row[QUEUED]:
            row[:] = self._began, wall, queued, kind

    def close(self) -> None:
        """Time no more."""
        os.close(self._file)

    def _delay(self) -> int:
        return int(os.pread(self._file, 64, 0).split()[1])


def held_up(rows: np.ndarray) -> np.ndarray:
    """How long calls took but for the time in which they were ready and had no core, in ns."""
    return rows[..., WALL] - rows[..., QUEUED]


def worst_first(rows: np.ndarray) -> np.ndarray:
    """The kept calls of all stopwatches, int64 `[n, 4]`, first those that were held up the longest."""
    rows = np.unique(rows.reshape(-1, 4), axis=0)
    rows = rows[rows[:, WALL] > 0]
    return rows[np.argsort(-held_up(rows), kind="stable")]
