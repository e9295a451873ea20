"""Timing in the child, and the few statistics that the report needs. Standard library only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

WARM_CALLS = 5


def time_calls(call: Callable[[], object], seconds: float, most: int = 2_000) -> list[float]:
    """Return the microseconds of single calls, for ``seconds`` or until there are ``most``; at least one."""
    for _ in range(WARM_CALLS):
        call()
    clock = time.perf_counter_ns
    deadline = clock() + int(seconds * 1e9)
    times = []
    while len(times) < most:
        begun = clock()
        call()
        ended = clock()
        times.append(round((ended - begun) / 1_000, 2))
        if ended >= deadline:
            break
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0..1) of ``values`` lie, interpolated between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median_of_rounds(rounds: Sequence[Sequence[float] | None]) -> float:
    """Return the median over rounds of each round's median."""
    return statistics.median(statistics.median(values) for values in rounds if values)


def paired_ratio(over: Sequence[Sequence[float] | None], under: Sequence[Sequence[float] | None]) -> float | None:
    """Return the median over rounds of (median of ``over``) / (median of ``under``).

    Paired by round, because a machine that changes its speed between rounds changes both. None if no round has both.
    """
    ratios = []
    for upper, lower in zip(over, under, strict=False):
        if upper and lower and statistics.median(lower) > 0:
            ratios.append(statistics.median(upper) / statistics.median(lower))
    return statistics.median(ratios) if ratios else None
