"""What a person sees: the live line, the table at the end and the chart."""

import dataclasses
import sys
from pathlib import Path

from train_dqn.ledger import Ledger

_REWRITE_EVERY = 0.25
_LINE_EVERY = 5.0


@dataclasses.dataclass(frozen=True)
class Moment:
    """One reading of a run's counters."""

    seconds: float
    steps: int
    samples: int
    ratio: float
    target_ratio: float
    size: int
    wait_count: int
    mean_return: float


class Live:
    """The line that tells how the run is doing; rewritten on a terminal, else printed every few seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._every = _REWRITE_EVERY if self._terminal else _LINE_EVERY
        self._last = Moment(0.0, 0, 0, 0.0, 0.0, 0, 0, 0.0)
        self._due = 0.0
        self._open = False

    def show(self, now: Moment) -> None:
        """Shows a reading, if it is time to."""
        if now.seconds < self._due:
            return
        line = describe(self._last, now)
        print(f"\r\x1b[K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)
        self._open = self._terminal
        self._due = now.seconds + self._every
        if now.seconds - self._last.seconds >= 1.0:
            self._last = now

    def say(self, text: str) -> None:
        """Prints a line of its own."""
        self.end()
        print(text, flush=True)

    def end(self) -> None:
        """Leaves the line as it is and goes to the next."""
        if self._open:
            print(flush=True)
        self._open = False


def describe(last: Moment, now: Moment) -> str:
    """Returns the live line: rates since `last`, the rest as it is now."""
    seconds = max(now.seconds - last.seconds, 1e-9)
    return (
        f"{now.seconds:4.0f}s  env {(now.steps - last.steps) / seconds:,.0f}/s"
        f"  samples {(now.samples - last.samples) / seconds:,.0f}/s"
        f"  ratio {now.ratio:.2f}/{now.target_ratio:g}  size {now.size:,}  waits {now.wait_count:,}"
        f"  return {now.mean_return:.1f}"
    )


def table(rows: list[tuple[str, str]]) -> str:
    """Returns rows of a name and a text, the texts below each other."""
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"  {name:<{width}}{text}" for name, text in rows)


def ledger_rows(ledger: Ledger) -> list[tuple[str, str]]:
    """Returns the ledger as rows of the table."""
    return [
        ("torn records", f"{ledger.torn} of {ledger.sampled:,} sampled and {ledger.kept:,} kept"),
        ("lost records", f"{ledger.lost} of {ledger.owed:,} that must still be there"),
        ("doubled records", f"{ledger.doubled} of {ledger.kept:,}"),
        ("over-issued samples", f"{ledger.over_issued} in {ledger.looks:,} readings"),
        ("unacknowledged writes", f"{ledger.unacknowledged} (at most {ledger.unacknowledged_limit})"),
    ]


def chart(history: list[Moment], target: float, path: Path) -> None:
    """Draws return and ratio over time into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = [moment.seconds for moment in history]
    figure, (returns, ratios) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6))
    returns.plot(seconds, [moment.mean_return for moment in history], label="mean of the last 20 episodes")
    returns.axhline(target, linestyle="--", color="grey", label="target")
    returns.set_ylabel("return")
    returns.legend()
    ratios.plot(seconds, [moment.ratio for moment in history], label="samples per insert")
    ratios.axhline(history[-1].target_ratio, linestyle="--", color="grey", label="limit")
    ratios.set_ylabel("samples per insert")
    ratios.set_xlabel("seconds")
    ratios.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
