"""No sampled record is a mixture, and writers do not starve samplers."""

import time

import numpy as np
import torch

import shmreplay
from stress_campaign import records
from stress_campaign.board import Board
from stress_campaign.calls import N_WORST, WALL, Stopwatch, held_up
from stress_campaign.crew import Crew

N_WRITERS = N_SAMPLERS = 2
PHASE = 0.4  # seconds
ALONE, TOGETHER = range(2)
SAMPLED, SPENT, TORN = range(3)
LONGEST = 0.1  # seconds


class Scene:
    """A ring, what is written to it, and how samplers ask. Phases without and with writers alternate."""

    def __init__(self, capacity: int, shape: tuple, extend: int, batch: int, rows: int, path) -> None:
        self.capacity, self.shape, self.extend, self.batch, self.rows = capacity, shape, extend, batch, rows
        self.board = Board(
            str(path / "board"),
            phase=(1,),
            stop=(1,),
            tallies=(N_SAMPLERS, 4096, 3),
            worst=(N_SAMPLERS, N_WORST, 4),
            written=(N_WRITERS,),
        )

    def make_buffer(self) -> shmreplay.TensorDictReplayBuffer:
        buffer = shmreplay.TensorDictReplayBuffer(
            storage=shmreplay.LazyTensorStorage(self.capacity),
            writer=shmreplay.TensorDictRoundRobinWriter(track_generations=True),
            batch_size=self.batch,
            shared=True,
        )
        step = max(1, self.capacity // 8)
        batches = records.Batches(N_WRITERS, step, self.shape)
        for first in range(0, self.capacity, step):
            buffer.extend(batches.make(first))
        return buffer


def write(scene: Scene, buffer, number: int, barrier) -> None:
    """Writes in every second phase, without a pause."""
    batches, board = records.Batches(number, scene.extend, scene.shape), scene.board
    first = 0
    while True:
        barrier.wait()
        if board.stop[0]:
            return
        end = time.monotonic() + PHASE
        while board.phase[0] == TOGETHER and time.monotonic() < end:
            buffer.extend(batches.make(first))
            first += scene.extend
        board.written[number] = first
        barrier.wait()


def sample(scene: Scene, buffer, number: int, barrier) -> None:
    """Samples in every phase; notes rows, time inside `sample`, and what is torn."""
    board = scene.board
    longest, ignored = Stopwatch(board.worst[number], 0), Stopwatch(np.zeros((N_WORST, 4), np.int64))
    turn = 0
    while True:
        barrier.wait()
        if board.stop[0]:
            return
        tally, end = board.tallies[number, turn], time.monotonic() + PHASE
        watch = longest if board.phase[0] == TOGETHER else ignored
        while time.monotonic() < end:
            watch.begin()
            batch = buffer.sample()
            tally[SPENT] += watch.end(0)
            tally[SAMPLED] += len(batch)
            tally[TORN] += records.torn(batch)
        turn += 1
        barrier.wait()


def play(scene: Scene, start: str = "spawn") -> tuple[np.ndarray, np.ndarray]:
    """Runs phases until enough rows were sampled beside writers; returns tallies `[turn, 3]` alone and together."""
    torch.set_num_threads(1)
    buffer, board = scene.make_buffer(), scene.board
    with Crew(start) as crew:
        barrier = crew.context.Barrier(N_WRITERS + N_SAMPLERS + 1, timeout=120)
        for work, count in ((write, N_WRITERS), (sample, N_SAMPLERS)):
            for number in range(count):
                crew.start(work, scene, buffer, number, barrier)
        turn = 0
        while turn < 8 or board.tallies[:, 1:turn:2, SAMPLED].sum() < scene.rows:
            board.phase[0] = turn % 2
            barrier.wait()
            barrier.wait()
            turn += 1
        board.stop[0] = 1
        barrier.wait()
        crew.finish()
    buffer.storage.state.check_valid()
    tallies = board.tallies[:, :turn].sum(0)
    return tallies[0::2], tallies[1::2]


def report(scene: Scene, alone: np.ndarray, together: np.ndarray) -> tuple[float, float]:
    """Prints what was measured; returns the ratio of the rates, and the longest call that a core was there for, in s."""
    rates = [np.median(part[:, SAMPLED] / part[:, SPENT] * 1e9) * N_SAMPLERS for part in (alone, together)]
    longest, held = scene.board.worst[..., WALL].max(), held_up(scene.board.worst).max()
    print(
        f"\n{together[:, SAMPLED].sum():,} rows beside writers ({scene.board.written.sum():,} written), "
        f"{together[:, TORN].sum() + alone[:, TORN].sum()} torn; rows/s in sample: {rates[0]:,.0f} alone, {rates[1]:,.0f} "
        f"beside writers ({rates[1] / rates[0]:.2f}); longest sample {longest / 1e6:.1f} ms, longest "
        f"but for waits for a core {held / 1e6:.1f} ms"
    )
    return rates[1] / rates[0], held / 1e9


def test_no_torn_record_on_64_slots_of_4_kib(full, tmp_path):
    scene = Scene(64, records.PAGE, 4, 256, 10_000_000 if full else 1_000_000, tmp_path)
    alone, together = play(scene)
    ratio, _ = report(scene, alone, together)
    assert together[:, TORN].sum() + alone[:, TORN].sum() == 0
    assert scene.board.written.min() > 0


def test_no_torn_record_on_1000_slots_of_56_kib(full, tmp_path):
    scene = Scene(1000, records.FRAMES, 4, 32, 1_000_000 if full else 100_000, tmp_path)
    alone, together = play(scene, "fork")
    ratio, _ = report(scene, alone, together)
    assert together[:, TORN].sum() + alone[:, TORN].sum() == 0
    assert ratio >= 0.25


def test_no_sample_takes_long_beside_large_writes(full, tmp_path):
    scene = Scene(1000, records.FRAMES, 32, 32, 100_000 if full else 30_000, tmp_path)
    alone, together = play(scene, "fork")
    _, longest = report(scene, alone, together)
    assert together[:, TORN].sum() == 0
    assert longest < LONGEST
