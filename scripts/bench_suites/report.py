"""The environment line, the table, the checks and the JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from bench_suites.model import BOUND, OURS, Check, Series
from bench_suites.peers import OURS_DISTRIBUTIONS
from bench_suites.timing import median_of_rounds, paired_ratio, percentile

COLUMNS = ("workload", "operation", "contestant", "median", "p95", "unit", "ratio")
_FEWEST_FOR_P95 = 20


def cpu_model(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def environment() -> dict[str, str]:
    """Describe the machine and our own interpreter."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    described = {
        "cpu": cpu_model(cpuinfo),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for name in OURS_DISTRIBUTIONS:
        try:
            described[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            described[name] = "absent"
    return described


def environment_line(described: dict[str, str]) -> str:
    return "environment: " + ", ".join(f"{name} {value}" for name, value in described.items())


def versions_lines(versions: dict[str, dict[str, str]]) -> list[str]:
    """Say what each peer's own interpreter has installed."""
    return [
        f"{host}: " + ", ".join(f"{name} {version}" for name, version in found.items())
        for host, found in sorted(versions.items())
        if host not in (OURS, BOUND)
    ]


def rows(series: Iterable[Series]) -> list[dict]:
    """Reduce each series to what a line of the table shows; ``ratio`` is a number or None."""
    measured = [one for one in series if any(one.rounds)]
    by_key = {(one.suite, *one.key): one for one in measured}
    return [_row(one, by_key) for one in measured]


def _row(one: Series, by_key: dict) -> dict:
    pooled = [value for values in one.rounds if values for value in values]
    ratio, ratio_name = None, ""
    reference = by_key.get((one.suite, one.workload, one.operation, one.contestant.against))
    if reference is not None:
        ratio, ratio_name = _ratio(one, reference)
    return {
        "suite": one.suite,
        "workload": one.workload,
        "operation": one.operation,
        "contestant": one.contestant.name,
        "median": median_of_rounds(one.rounds),
        "p95": percentile(pooled, 0.95) if len(pooled) >= _FEWEST_FOR_P95 else None,
        "unit": one.unit,
        "ratio": ratio,
        "ratio_name": ratio_name if ratio is not None else "",
    }


def _ratio(one: Series, ours: Series) -> tuple[float | None, str]:
    # Above 1, ours is the better one beside a peer, and the worse one beside the bound, whatever the unit.
    label = "bound" if one.contestant.host == BOUND else "peer"
    ours_on_top = (label == "bound") != one.higher_is_better
    if ours_on_top:
        return paired_ratio(ours.rounds, one.rounds), f"ours/{label}"
    return paired_ratio(one.rounds, ours.rounds), f"{label}/ours"


def table(lines: list[dict]) -> str:
    """Lay the rows out in columns, with a blank line between operations."""
    cells = [COLUMNS] + [_cells(line) for line in lines]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    text, previous = [], None
    for row in cells:
        if previous is not None and row[:2] != previous:
            text.append("")
        previous = row[:2]
        padded = (_pad(value, width, name) for value, width, name in zip(row, widths, COLUMNS, strict=True))
        text.append("  ".join(padded).rstrip())
    return "\n".join(text)


def _pad(value: str, width: int, column: str) -> str:
    return value.rjust(width) if column in ("median", "p95") else value.ljust(width)


def _cells(line: dict) -> tuple[str, ...]:
    ratio = f"{line['ratio_name']} {line['ratio']:.2f}" if line["ratio"] is not None else ""
    return (
        line["workload"],
        line["operation"],
        line["contestant"],
        _number(line["median"]),
        _number(line["p95"]),
        line["unit"],
        ratio,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def judge(checks: Iterable[Check], series: Iterable[Series], suite: str) -> list[dict]:
    """Compare measured ratios with what must hold; what was not measured does not hold."""
    by_key = {one.key: one for one in series if one.suite == suite}
    verdicts = []
    for check in checks:
        over = by_key.get((check.workload, check.operation, check.over))
        under = by_key.get((check.workload, check.operation, check.under))
        ratio = paired_ratio(over.rounds, under.rounds) if over and under else None
        verdicts.append({
            "suite": suite,
            "check": check.wording(),
            "ratio": ratio,
            "holds": ratio is not None and check.holds(ratio),
        })
    return verdicts


def verdict_lines(verdicts: Iterable[dict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        found = "not measured" if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
        lines.append(f"{'ok  ' if verdict['holds'] else 'FAIL'} {verdict['check']}: {found}")
    return lines


def write_json(path: Path, content: dict, series: Iterable[Series]) -> None:
    """Write everything, raw numbers included; the file appears whole or not at all."""
    raw = [{**asdict(one), "contestant": asdict(one.contestant)} for one in series]
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({**content, "series": raw}))
    partial.replace(path)
