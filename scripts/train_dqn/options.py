"""What the job can be told: the command line, checked, as one frozen value that travels to every process."""

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of one run. Counts are records or environment steps, durations are seconds."""

    collectors: int = 4
    seed: int = 0
    start: str = "forkserver"
    kill_every: float = 0.0
    samples_per_insert: float = 8.0
    target: float = 400.0
    time_limit: float = 300.0
    steps: int = 0
    out: Path = Path("train_out")
    capacity: int = 50_000
    batch_size: int = 128
    min_size_to_sample: int = 1_000
    max_inserts_ahead: int = 4_000
    extend_size: int = 16
    n_step: int = 3
    gamma: float = 0.99
    hidden: int = 128
    learning_rate: float = 1e-3
    target_rate: float = 0.005
    publish_every: int = 20
    epsilon_steps: int = 20_000

    @property
    def collector_limit(self) -> int:
        """How many collectors may be started in all, those that replace killed ones included."""
        kills = math.ceil(self.time_limit / self.kill_every) if self.kill_every else 0
        return self.collectors + kills + 1


def _number(kind: type, lowest: float, *, or_zero: bool = False) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not (lowest <= value < math.inf or (or_zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text} is not {'0 or ' if or_zero else ''}a number from {lowest:g} up")
        return value

    convert.__name__ = kind.__name__  # argparse names it where the text is no number at all
    return convert


def _parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(
        prog="scripts/train",
        description="Trains DQN on CartPole-v1 with collector processes and a learner on one shared replay buffer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--collectors", type=_number(int, 1), default=default.collectors, help="processes that act and write")
    add("--seed", type=_number(int, 0), default=default.seed, help="of networks, environments and exploration")
    add("--start", choices=("fork", "spawn", "forkserver"), default=default.start, help="how processes are started")
    add(
        "--kill-every",
        type=_number(float, 1, or_zero=True),
        default=default.kill_every,
        metavar="SECONDS",
        help="kill a random collector with SIGKILL this often and start a new one; 0 for never",
    )
    ratio = _number(float, 0.1)
    add("--samples-per-insert", type=ratio, default=default.samples_per_insert, help="ratio that the buffer holds")
    add("--target", type=float, default=default.target, help="mean return of the last 20 episodes that is success")
    add("--time-limit", type=_number(float, 1), default=default.time_limit, metavar="SECONDS", help="when to give up")
    add("--steps", type=_number(int, 0), default=default.steps, help="environment steps to give up after; 0: no limit")
    add("--out", type=Path, default=default.out, metavar="DIR", help="where the chart goes")
    return parser


def parse(arguments: list[str]) -> Options:
    """Returns the options of a command line; leaves with status 2 and a message where it is not one."""
    return Options(**vars(_parser().parse_args(arguments)))
