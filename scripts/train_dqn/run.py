"""The supervisor: starts the processes, watches them, kills some when asked to, and closes the account."""

import collections
import random
import signal
import sys
import time

import numpy as np
import shmreplay as sr
import torch

from train_dqn import report
from train_dqn.board import Board
from train_dqn.collector import collect
from train_dqn.family import Fleet
from train_dqn.learner import learn
from train_dqn.ledger import audit
from train_dqn.options import Options
from train_dqn.policy import make_network

_EPISODES = 20  # whose mean return decides
_STOP_TIMEOUT = 5.0
_INTERRUPT_TIMEOUT = 0.6


def make_buffer(options: Options) -> object:
    """Returns the shared, rate-limited buffer of the run."""
    buffer = sr.RateLimitedReplayBuffer(
        storage=sr.LazyTensorStorage(options.capacity),
        writer=sr.TensorDictRoundRobinWriter(track_generations=True),
        samples_per_insert=options.samples_per_insert,
        batch_size=options.batch_size,
        min_size_to_sample=options.min_size_to_sample,
        max_inserts_ahead=options.max_inserts_ahead,
    )
    return buffer.share()


class Run:
    """One training. `interrupted` is set by a signal handler; all else changes in `train` only."""

    def __init__(self, options: Options) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.interrupted = 0
        self.kills = 0
        self.history: list[report.Moment] = []
        self.board = Board(options)
        self.buffer = make_buffer(options)
        self._network = make_network(options.hidden).share_memory()
        self._fleet = Fleet(options.start, self.board)
        self._started = 0
        self._rng = random.Random(options.seed)
        self._returns: collections.deque[float] = collections.deque(maxlen=_EPISODES)
        self._seen = np.zeros(options.collector_limit, np.int64)
        self._began = time.monotonic()
        self._live = report.Live()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def mean_return(self) -> float:
        """Mean return of the last episodes; 0 before the first."""
        return sum(self._returns) / max(1, len(self._returns))

    def train(self) -> str | None:
        """Trains until there is an outcome; returns None for success, else what failed."""
        self._fleet.start("learner", learn, self.buffer, self._network, self.options)
        for _ in range(self.options.collectors):
            self._start_collector()
        next_kill = self.options.kill_every
        while True:
            self._fleet.wait(0.1)
            self._look()
            over, failure = self._outcome()
            if over or self.interrupted:
                self._live.end()
                return failure
            if self.options.kill_every and self.seconds >= next_kill:
                next_kill += self.options.kill_every
                self._replace_collector()

    def stop(self, timeout: float) -> int:
        """Ends all children; returns how many had to be killed after `timeout` seconds."""
        self.board.stop()
        return self._fleet.close(timeout)

    def _start_collector(self) -> None:
        number = self._started
        self._started += 1
        self._fleet.start(f"collector {number}", collect, number, self.buffer, self._network, self.options)

    def _replace_collector(self) -> None:
        victims = self._fleet.alive("collector")
        if victims:
            self._fleet.kill(self._rng.choice(victims))
            self.kills += 1
            self._start_collector()

    def _look(self) -> None:
        for _, episode_return in self.board.episodes_since(self._seen):
            self._returns.append(episode_return)
        stats = self.buffer.stats()
        self.history.append(
            report.Moment(
                seconds=self.seconds,
                steps=self.board.steps,
                samples=stats["samples_returned"],
                ratio=stats["samples_returned"] / max(1, stats["write_count"]),
                target_ratio=stats["target_samples_per_insert"],
                size=stats["size"],
                wait_count=stats["sample_wait_count"],
                mean_return=self.mean_return,
            )
        )
        self._live.show(self.history[-1])

    def _outcome(self) -> tuple[bool, str | None]:
        options = self.options
        failures = self._fleet.failures()
        if failures:
            return True, failures[0]
        if len(self._returns) == _EPISODES and self.mean_return >= options.target:
            return True, None
        reached = f"the mean return of the last {len(self._returns)} episodes is {self.mean_return:.1f}"
        if self.seconds >= options.time_limit:
            return True, f"{reached} after {options.time_limit:g} seconds, not {options.target:g}"
        if options.steps and self.board.steps >= options.steps:
            return True, f"{reached} after {options.steps:,} steps, not {options.target:g}"
        return False, None


def _summary(run: Run, failure: str | None) -> list[tuple[str, str]]:
    last, stats = run.history[-1], run.buffer.stats()
    content = f"{stats['size']:,} of {stats['capacity']:,} records, {stats['write_count']:,} written"
    verdict = "success" if failure is None else "failure"
    died = f"{run.options.collectors} at a time ({run.options.start}), {run.kills} killed"
    return [
        ("outcome", f"{verdict}: mean return {last.mean_return:.1f} of {run.options.target:g}"),
        ("time", f"{last.seconds:.1f} s"),
        ("environment steps", f"{last.steps:,} ({last.steps / last.seconds:,.0f}/s)"),
        ("learner", f"{run.board.learner[0]:,.0f} updates, {last.samples:,} samples, {last.wait_count:,} waits"),
        ("samples per insert", f"{last.ratio:.3f} of {last.target_ratio:g}"),
        ("collectors", died),
        ("buffer", f"{content}, {stats['recovered']} recoveries"),
    ]


def _close(run: Run, failure: str | None) -> int:
    late = run.stop(_STOP_TIMEOUT)
    ledger = audit(run.buffer, run.board, run.kills + late, run.options)
    path = run.options.out / "train.png"
    report.chart(run.history, run.options.target, path)
    print(report.table([*_summary(run, failure), *report.ledger_rows(ledger), ("chart", str(path))]), flush=True)
    reasons = [failure] if failure else []
    if late:
        reasons.append(f"{late} processes did not stop within {_STOP_TIMEOUT:g} seconds")
    reasons += [f"the ledger shows {count} {name}" for name, count in ledger.faults.items() if count]
    for reason in reasons:
        print(f"train: failed: {reason}", file=sys.stderr)
    return 1 if reasons else 0


def main(options: Options) -> int:
    """Runs the job; returns 0 for success, 1 for failure, 128 + signal where it was interrupted."""
    torch.set_num_threads(1)
    run = Run(options)

    def interrupt(number: int, frame: object) -> None:
        run.interrupted = number

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        failure = run.train()
        if not run.interrupted:
            return _close(run, failure)
        run.stop(_INTERRUPT_TIMEOUT)
        print("train: interrupted", file=sys.stderr)
        return 128 + run.interrupted
    finally:
        run.board.stop()
        run.buffer.shutdown(everywhere=True)
