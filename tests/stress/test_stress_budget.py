"""The budget at every instant, and who gets it."""

import time

import pytest
import torch

import shmreplay
from stress_campaign import records
from stress_campaign.board import Board, Flag
from stress_campaign.crew import Crew
from stress_campaign.workers import is_over_issued

RATIO = 4
EXTEND = 4
CALLS, OVER_ISSUED, LOOKS = range(3)
ENOUGH = 60  # seconds; only guards hangs


def make_buffer() -> shmreplay.RateLimitedReplayBuffer:
    return shmreplay.RateLimitedReplayBuffer(
        storage=shmreplay.LazyTensorStorage(256),
        writer=shmreplay.TensorDictRoundRobinWriter(track_generations=True),
        samples_per_insert=RATIO,
        shared=True,
    )


def make_board(path) -> Board:
    return Board(str(path / "board"), stop=(1,), written=(1,), seats=(8, 8))


def await_waiting(buffer, n: int) -> None:
    """Returns when `n` calls of sample wait."""
    deadline = time.monotonic() + ENOUGH
    while buffer.stats()["waiting"] < n:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write_paced(buffer, board: Board, size: int, n_extends: int) -> None:
    """Writes at a pace at which samplers wait for it; `n_extends` times, or until stopped."""
    batches, stop = records.Batches(0, size), Flag(board, "stop")
    while board.written[0] < n_extends and not stop.is_set():
        buffer.extend(batches.make(int(board.written[0]) * size))
        board.written[0] += 1
        time.sleep(0.001)


def sample_all(buffer, board: Board, seat: int, n: int) -> None:
    mine, stop = board.seats[seat], Flag(board, "stop")
    while True:
        try:
            batch = buffer.sample(n, wait=True, cancel_event=stop)
        except shmreplay.ClosedError:
            return
        assert not records.torn(batch)
        mine[CALLS] += 1
        mine[OVER_ISSUED] += is_over_issued(buffer.stats(), RATIO)


def serve(buffer, board: Board, seat: int, n: int) -> None:
    """A learner whose own work costs as good as nothing: it waits always."""
    mine, stop = board.seats[seat], Flag(board, "stop")
    while True:
        try:
            buffer.sample(n, wait=True, cancel_event=stop)
        except shmreplay.ClosedError:
            return
        mine[CALLS] += 1


def watch(buffer, board: Board, seat: int) -> None:
    mine, stop = board.seats[seat], Flag(board, "stop")
    while not stop.is_set():
        mine[OVER_ISSUED] += is_over_issued(buffer.stats(), RATIO)
        mine[LOOKS] += 1


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_budget_is_never_over_issued_and_used_up(start, full, tmp_path):
    torch.set_num_threads(1)
    n_extends, n_samplers, batch = 5000 if full else 500, 4, 8
    buffer, board = make_buffer(), make_board(tmp_path)
    with Crew(start) as crew:
        for seat in range(n_samplers):
            crew.start(sample_all, buffer, board, seat, batch)
        await_waiting(buffer, n_samplers)
        crew.start(watch, buffer, board, n_samplers)
        crew.start(write_paced, buffer, board, EXTEND, n_extends)
        deadline = time.monotonic() + ENOUGH + n_extends * 0.02
        while buffer.stats()["samples_returned"] < n_extends * EXTEND * RATIO:
            crew.check()
            assert time.monotonic() < deadline, buffer.stats()
            time.sleep(0.01)
        await_waiting(buffer, n_samplers)
        at_rest = buffer.stats()
        Flag(board, "stop").set()
        crew.finish()
    print(f"\n{at_rest['sample_calls']} samples, {board.seats[:, LOOKS].sum()} looks")
    assert at_rest["write_count"] == n_extends * EXTEND
    assert at_rest["samples_returned"] == n_extends * EXTEND * RATIO
    assert at_rest["reserved_samples"] == at_rest["sample_budget"] == 0
    assert board.seats[:, CALLS].sum() == at_rest["sample_calls"] == n_extends * EXTEND * RATIO // batch
    assert board.seats[:, OVER_ISSUED].sum() == 0
    assert buffer.stats()["waiting"] == 0
    buffer.storage.state.check_valid()


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (4, 8, 16, 32)], ids=["one-size", "four-sizes"])
def test_learners_that_wait_are_served_alike(sizes, full, tmp_path):
    """One record at a time allows one learner at most to go on: then all others wait while it comes back.

    Where one insert serves several at once, the quicker of them asks again first: that order is the learners' own.
    """
    seconds = 30 if full else 8
    buffer, board = make_buffer(), make_board(tmp_path)
    with Crew("fork") as crew:
        for seat, n in enumerate(sizes):
            crew.start(serve, buffer, board, seat, n)
        await_waiting(buffer, len(sizes))
        crew.start(write_paced, buffer, board, 1, 1 << 40)
        time.sleep(seconds)
        served = board.seats[: len(sizes), CALLS].copy()
        Flag(board, "stop").set()
        crew.finish()
    difference = (served.max() - served.min()) / served.max()
    print(f"\nserved in {seconds} s: {served.tolist()}, {100 * difference:.1f} % apart")
    assert served.min() > 40
    assert difference <= 0.05
    assert board.seats[: len(sizes), CALLS].sum() == buffer.stats()["sample_calls"]
