"""The values that travel between driver, suites and report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

OURS = "ours"
BOUND = "bound"


@dataclass(frozen=True)
class Config:
    """What the command line asked for."""

    suites: tuple[str, ...]
    peers: tuple[str, ...] = ()
    peer_pythons: dict[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = ("W1", "W2")
    repeats: int = 5
    quick: bool = False
    check: bool = False
    json_path: Path | None = None
    scratch_dir: Path = Path()


@dataclass(frozen=True)
class Contestant:
    """One thing to measure, in a child process of its own.

    Args:
        name: as the table shows it.
        host: whose interpreter runs it: ``ours``, ``bound`` (the same interpreter) or a peer.
        target: ``module:function``, called in the child with ``arguments``; it returns a dict of operations.
        arguments: JSON values.
        against: our contestant that it is compared with; None for ours.
    """

    name: str
    host: str
    target: str
    arguments: dict = field(default_factory=dict)
    against: str | None = None


@dataclass
class Series:
    """The numbers of one contestant at one operation, a list for each round (None: not measured in that round)."""

    suite: str
    workload: str
    operation: str
    contestant: Contestant
    unit: str
    higher_is_better: bool = False
    rounds: list[list[float] | None] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.workload, self.operation, self.contestant.name)


@dataclass(frozen=True)
class Check:
    """A ratio that must hold: median of ``over`` divided by median of ``under``, round by round."""

    workload: str
    operation: str
    over: str
    under: str
    at_least: float | None = None
    at_most: float | None = None
    peer: str | None = None

    def holds(self, ratio: float) -> bool:
        if self.at_least is not None and ratio < self.at_least:
            return False
        return self.at_most is None or ratio <= self.at_most

    def wording(self) -> str:
        limit = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        return f"{self.workload} {self.operation}: {self.over} / {self.under} {limit}"
