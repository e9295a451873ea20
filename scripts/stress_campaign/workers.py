"""What the processes of a run do on the buffer: write, sample, look."""

import dataclasses
import logging
import threading
from fractions import Fraction

import numpy as np

import shmreplay
from stress_campaign import records
from stress_campaign.board import Board, Flag
from stress_campaign.calls import N_WORST, Stopwatch
from stress_campaign.holds import HoldTimes

EXTEND, SAMPLE, STATS = range(3)
KINDS = ("extend", "sample", "stats")
MAX_WRITERS = 1 << 14  # over the length of a round
ACKNOWLEDGED, BEGUN, AMBIGUOUS = range(3)
CALLS, ROWS, TORN, OVER_ISSUED, PROVEN, LOOKS, BORN = range(7)


@dataclasses.dataclass(frozen=True)
class Round:
    """A buffer and what happens on it."""

    name: str
    capacity: int
    extend_size: int
    batch_size: int
    samples_per_insert: float | None = None
    max_inserts_ahead: int | None = None

    def make_buffer(self) -> shmreplay.TensorDictReplayBuffer:
        """Returns it, shared and empty."""
        return shmreplay.TensorDictReplayBuffer(
            storage=shmreplay.LazyTensorStorage(self.capacity),
            writer=shmreplay.TensorDictRoundRobinWriter(track_generations=True),
            batch_size=self.batch_size,
            samples_per_insert=self.samples_per_insert,
            max_inserts_ahead=self.max_inserts_ahead,
            shared=True,
        )

    def make_board(self, path: str, n_seats: int) -> Board:
        """Returns the words for it: `acked` tells, for each writer and slot, generation + 1 and sequence."""
        return Board(
            path,
            stop=(1,),
            writers=(MAX_WRITERS, 8),
            seats=(n_seats, 8),
            worst=(n_seats, N_WORST, 4),
            holds=(n_seats, 4),
            acked=(MAX_WRITERS, self.capacity, 2),
        )


@dataclasses.dataclass(frozen=True)
class Post:
    """A worker's place: `seat` is its row of the board, `writer` the number that its records carry."""

    seat: int
    survives: bool
    writer: int = -1
    spins: bool = False


def write(round_: Round, buffer, board: Board, post: Post) -> None:
    """Writes until stopped; acknowledges every call that returned, with the generations that its slots have."""
    batches = records.Batches(post.writer, round_.extend_size)
    stop, mine = Flag(board, "stop"), board.writers[post.writer]
    with _Timed(buffer, board, post) as watch:
        while not stop.is_set():
            first = int(mine[BEGUN])
            mine[BEGUN] = first + round_.extend_size
            before = buffer.write_count
            watch.begin()
            try:
                slots = buffer.extend(batches.make(first), **_limits(round_, stop))
            except shmreplay.ClosedError:
                mine[BEGUN] = first
                return
            watch.end(EXTEND)
            board.seats[post.seat, CALLS] += 1
            _acknowledge(round_, buffer, board, post, slots, first, before)


def _limits(round_: Round, stop: Flag) -> dict:
    return {"cancel_event": stop} if round_.max_inserts_ahead else {}


def _acknowledge(round_: Round, buffer, board: Board, post: Post, slots, first: int, before: int) -> None:
    mine = board.writers[post.writer]
    mine[ACKNOWLEDGED] = first + round_.extend_size
    generations = buffer.writer.generations_of(slots).numpy()
    if buffer.write_count - before > round_.capacity // 2:
        mine[AMBIGUOUS] += round_.extend_size  # others may have lapped it: these generations may be theirs
        return
    rows, slots = board.acked[post.writer], slots.numpy()
    rows[slots, 1] = np.arange(first, first + round_.extend_size)
    rows[slots, 0] = generations + 1


def sample(round_: Round, buffer, board: Board, post: Post) -> None:
    """Samples until stopped, and checks every record."""
    stop, mine = Flag(board, "stop"), board.seats[post.seat]
    with _Timed(buffer, board, post) as watch:
        while not stop.is_set():
            watch.begin()
            try:
                batch = buffer.sample(wait=True, cancel_event=stop)
            except shmreplay.ClosedError:
                return
            watch.end(SAMPLE)
            begun = board.writers[batch["writer"].numpy() % MAX_WRITERS, BEGUN]
            mine[CALLS] += 1
            mine[ROWS] += len(batch)
            mine[TORN] += records.torn(batch) + int(np.count_nonzero(batch["sequence"].numpy() >= begun))


def look(round_: Round, buffer, board: Board, post: Post) -> None:
    """Looks at the counters until stopped: never may more be returned and reserved than the inserts allow."""
    stop, mine = Flag(board, "stop"), board.seats[post.seat]
    ratio, earlier = round_.samples_per_insert, None
    with _Timed(buffer, board, post) as watch:
        while not stop.is_set():
            watch.begin()
            stats = buffer.stats()
            watch.end(STATS)
            mine[LOOKS] += 1
            if ratio is not None:
                mine[OVER_ISSUED] += is_over_issued(stats, ratio)
                # inserts only grow: what was out at the look before must fit into those of this look
                mine[PROVEN] += earlier is not None and is_over_issued(earlier | {"write_count": stats["write_count"]}, ratio)
                earlier = stats


def is_over_issued(stats: dict, ratio) -> bool:
    """Whether these figures say that more was handed out than the inserts allow."""
    return stats["samples_returned"] + stats["reserved_samples"] > stats["write_count"] * Fraction(ratio) // 1


def prepare(connection=None) -> None:
    """What the first process of a kind does for all after it: the imports, seconds long, are done when it returns."""
    if connection is not None:
        connection.send("ready")


class _Timed:
    """The stopwatch of a worker; that of a victim keeps nothing. Beside it, where asked, a thread that spins."""

    def __init__(self, buffer, board: Board, post: Post) -> None:
        logging.getLogger("shmreplay").setLevel(logging.ERROR)  # it tells of each death
        board.seats[post.seat, BORN] += 1
        worst = board.worst[post.seat] if post.survives else np.zeros((N_WORST, 4), np.int64)
        self._watch = Stopwatch(worst)
        self._holds = HoldTimes(buffer, board.holds[post.seat]) if post.spins and post.survives else None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True) if post.spins else None

    def _spin(self) -> None:
        while not self._done.is_set():
            pass

    def __enter__(self) -> Stopwatch:
        if self._holds is not None:
            self._holds.install()
        if self._thread is not None:
            self._thread.start()
        return self._watch

    def __exit__(self, *_) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._holds is not None:
            self._holds.remove()
        self._watch.close()


def survive(connection, role: str) -> None:
    """Plays `role` in one round after another; a round comes as (round, buffer, board, post), None ends it."""
    prepare(connection)
    while (order := connection.recv()) is not None:
        globals()[role](*order)
        del order
        connection.send("done")
