"""A run: survivors that stay, victims that die and are replaced, and the account after each round."""

import argparse
import dataclasses
import gc
import os
import random
import time

import numpy as np

from stress_campaign import workers
from stress_campaign.audit import Account, audit, left_files
from stress_campaign.board import Board
from stress_campaign.crew import Child, Crew
from stress_campaign.workers import MAX_WRITERS, Post, Round

_ENOUGH = 30.0  # seconds that a stopped round may take; only guards hangs
_LIFE = 0.02  # mean seconds that a victim works
_DIE_EARLY = 0.1  # part of the victims that die at any moment after their start
_GLANCE = 0.001  # seconds between two looks at the victims
_UNBORN = float("inf")


@dataclasses.dataclass
class Finding:
    """What came out of a round."""

    round_: Round
    seconds: float
    began_ns: int
    calls: int
    rows: int
    looks: int
    over_issued: int
    proven: int
    torn: int
    kills: int
    lock: str
    stats: dict
    worst: np.ndarray
    holds: np.ndarray
    account: Account
    problems: list[str]


@dataclasses.dataclass
class _Survivor:
    child: Child
    connection: object
    role: str
    seat: int


@dataclasses.dataclass
class _Victim:
    child: Child
    role: str
    seat: int
    lives: int
    dies_at: float


class Campaign:
    """Mutable: the survivors, the number of the next writer and the moments of death, by this process alone."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self._options, self._folder = options, folder
        self._random = random.Random(options.seed)
        self._next_writer = 0
        self._survivors: list[_Survivor] = []
        self._victim_roles: list[str] = []
        self._problems: list[str] = []

    def run(self, rounds: tuple[Round, ...]) -> list[Finding]:
        """Runs one round after another; stops at the first that hangs."""
        findings = []
        with Crew("spawn") as crew, Crew("forkserver", ("stress_campaign.workers",)) as nursery:
            self._enlist(crew)
            nursery.start(workers.prepare)
            nursery.finish()
            for round_ in rounds:
                findings.append(self._run_round(round_, nursery, self._options.seconds / len(rounds)))
                if findings[-1].problems:
                    return findings
            for survivor in self._survivors:
                survivor.connection.send(None)
            crew.finish()
        left = left_files()
        findings[-1].account.fault("leaked", len(left), f"files {left[:4]}")
        return findings

    def _enlist(self, crew: Crew) -> None:
        """Starts the survivors, once a run; with `--kill`, half of the seats are left to victims."""
        options, seat = self._options, 0
        for role, count in (("write", options.writers), ("sample", options.samplers), ("look", 1)):
            n_victims = count // 2 if options.kill else 0
            self._victim_roles += [role] * n_victims
            for _ in range(count - n_victims):
                connection, end = crew.context.Pipe()
                child = crew.start(workers.survive, end, role)
                end.close()
                self._survivors.append(_Survivor(child, connection, role, seat))
                seat += 1
        for survivor in self._survivors:
            survivor.connection.recv()

    def _post(self, role: str, seat: int, survives: bool) -> Post:
        writer = -1
        if role == "write":
            writer = self._next_writer
            self._next_writer += 1
        return Post(seat, survives, writer, self._options.spin)

    def _run_round(self, round_: Round, nursery: Crew, seconds: float) -> Finding:
        self._next_writer = 0
        path = os.path.join(self._folder, "board")
        board = round_.make_board(path, len(self._survivors) + len(self._victim_roles))
        buffer = round_.make_buffer()
        began = time.monotonic_ns()
        for survivor in self._survivors:
            post = self._post(survivor.role, survivor.seat, True)
            survivor.connection.send((round_, buffer, board, post))
        kills = self._kill_until(time.monotonic() + seconds, round_, buffer, board, nursery)
        board.stop[0] = time.monotonic_ns()
        problems = self._problems + self._await_survivors()
        lasted = (time.monotonic_ns() - began) / 1e9
        account = audit(round_, buffer, board, kills["write"]) if not problems else Account()
        finding = self._finding(round_, lasted, began, buffer, board, kills, account, problems)
        del buffer
        gc.collect()
        os.unlink(path)
        return finding

    def _kill_until(self, end: float, round_: Round, buffer, board: Board, nursery: Crew) -> dict[str, int]:
        """Keeps the victims' seats filled, and kills; at the end too."""
        kills = {"write": 0, "sample": 0}
        first_seat = len(self._survivors)
        born = [
            self._bear(role, first_seat + number, round_, buffer, board, nursery)
            for number, role in enumerate(self._victim_roles)
        ]
        while (now := time.monotonic()) < end and self._next_writer < MAX_WRITERS and not self._problems:
            for at, victim in enumerate(born):
                if victim.dies_at == _UNBORN and board.seats[victim.seat, workers.BORN] > victim.lives:
                    victim.dies_at = now + self._random.expovariate(1 / _LIFE)
                if victim.dies_at <= now:
                    self._slay(victim, kills)
                    born[at] = self._bear(victim.role, victim.seat, round_, buffer, board, nursery)
            time.sleep(_GLANCE)
        for victim in born:
            self._slay(victim, kills)
        return kills

    def _bear(self, role: str, seat: int, round_: Round, buffer, board: Board, nursery: Crew) -> _Victim:
        """Starts a victim; most die some time after they began to work, some while they start."""
        post, lives = self._post(role, seat, False), int(board.seats[seat, workers.BORN])
        child = Child(nursery.context, getattr(workers, role), (round_, buffer, board, post))
        early = self._random.random() < _DIE_EARLY
        dies_at = time.monotonic() + self._random.expovariate(1 / _LIFE) if early else _UNBORN
        return _Victim(child, role, seat, lives, dies_at)

    def _slay(self, victim: _Victim, kills: dict[str, int]) -> None:
        if not victim.child.kill():
            self._problems.append(f"a victim ({victim.role}) ended by itself\n{victim.child.last_words()}")
        victim.child.close()
        kills[victim.role] += 1

    def _await_survivors(self) -> list[str]:
        deadline, problems = time.monotonic() + _ENOUGH, []
        for survivor in self._survivors:
            try:
                if survivor.connection.poll(max(0.0, deadline - time.monotonic())):
                    survivor.connection.recv()
                    continue
                problems.append(f"survivor {survivor.seat} ({survivor.role}) hangs")
            except EOFError:
                survivor.child.process.join()
                problems.append(f"survivor {survivor.seat} ({survivor.role}) failed\n{survivor.child.last_words()}")
        return problems

    def _finding(self, round_, lasted, began, buffer, board, kills, account, problems) -> Finding:
        sums = board.seats.sum(0)
        worst = board.worst.copy()
        # a call that was still waiting when the round was stopped had been let wait until then
        ends = np.minimum(worst[..., 0] + worst[..., 1], board.stop[0])
        worst[..., 1] = np.where(worst[..., 1] > 0, ends - worst[..., 0], 0)
        return Finding(
            round_, lasted, began, int(sums[workers.CALLS]), int(sums[workers.ROWS]), int(sums[workers.LOOKS]),
            int(sums[workers.OVER_ISSUED]), int(sums[workers.PROVEN]), int(sums[workers.TORN]) + account.torn,
            sum(kills.values()), type(buffer.storage.segment.lock).__name__, buffer.stats(), worst, board.holds.copy(), account, problems,
        )  # fmt: skip
