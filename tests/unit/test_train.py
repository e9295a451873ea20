"""The parts of the main job, each on its own."""

import time

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from train_dqn import options, policy, records, report
from train_dqn.board import Board
from train_dqn.learner import over_issued
from train_dqn.ledger import audit, missing

SMALL = options.Options(collectors=2, capacity=64, extend_size=4)


def rows(n: int, collector: int = 0) -> TensorDict:
    """Returns one batch of n records with distinct content."""
    batcher = records.Batcher(n, collector)
    for k in range(n):
        state = np.full(4, k + 0.5, np.float32)
        batch = batcher.add((state, k % 2, 1.0, state + 1, 0.97))
    return batch


class TestChecksums:
    def test_whole_records_match(self):
        assert records.torn(rows(32)) == 0

    @pytest.mark.parametrize("name", records.FIELDS)
    def test_a_record_with_a_foreign_field_is_torn(self, name):
        batch, other = rows(8), rows(8, collector=1)
        batch[name][3] = other[name][3] + 2
        assert records.torn(batch) == 1

    def test_each_single_bit_counts(self):
        batch = rows(1)
        for name in records.FIELDS:
            field = batch[name].numpy()
            words = field.view(np.uint32).reshape(-1)
            for word in range(words.size):
                for bit in range(32):
                    words[word] ^= np.uint32(1 << bit)
                    assert records.torn(batch) == 1
                    words[word] ^= np.uint32(1 << bit)
        assert records.torn(batch) == 0

    def test_swapped_values_count(self):
        batch = rows(2)
        state = batch["observation"].clone()
        batch["observation"][:] = batch["next_observation"]
        batch["next_observation"][:] = state
        assert records.torn(batch) == 2

    def test_a_zeroed_record_is_torn(self):
        assert records.torn(torch.zeros_like(rows(2))) == 2


class TestNStep:
    STATES = [np.full(4, k, np.float32) for k in range(6)]

    def fold(self, n_steps: int, **end: bool) -> list[tuple]:
        folding, found = records.NStep(3, 0.5), []
        for k in range(n_steps):
            ended = {"terminated": False, "truncated": False} | (end if k == n_steps - 1 else {})
            found += folding.push(self.STATES[k], k, 1.0, self.STATES[k + 1], **ended)
        return [(int(first[0]), action, folded, int(last[0]), rest) for first, action, folded, last, rest in found]

    def test_a_record_is_complete_after_n_steps(self):
        assert self.fold(2) == []
        assert self.fold(4) == [(0, 0, 1.75, 3, 0.125), (1, 1, 1.75, 4, 0.125)]

    def test_termination_flushes_and_ends_the_value(self):
        assert self.fold(3, terminated=True) == [(0, 0, 1.75, 3, 0.0), (1, 1, 1.5, 3, 0.0), (2, 2, 1.0, 3, 0.0)]

    def test_truncation_flushes_and_keeps_the_value(self):
        assert self.fold(2, truncated=True) == [(0, 0, 1.5, 2, 0.25), (1, 1, 1.0, 2, 0.5)]


class TestBatcher:
    def test_batches_are_numbered_through(self):
        batcher = records.Batcher(2, 7)
        row = (np.zeros(4, np.float32), 0, 1.0, np.zeros(4, np.float32), 0.9)
        batches = [batch for batch in (batcher.add(row) for _ in range(5)) if batch is not None]
        assert [batch["sequence"].tolist() for batch in batches] == [[0, 1], [2, 3]]
        assert all(batch["collector"].tolist() == [7, 7] for batch in batches)
        assert {name: batch.dtype for name, batch in batches[0].items()} == {
            **{name: torch.from_numpy(np.empty(0, kind)).dtype for name, (kind, _) in records.FIELDS.items()},
            "checksum": torch.int64,
        }


class TestPolicy:
    def test_epsilon_falls_to_a_floor_of_its_own(self):
        chosen = options.Options(epsilon_steps=100)
        assert policy.epsilon(0, 0, chosen) == 1.0
        assert policy.epsilon(50, 3, chosen) == 0.5
        assert len({policy.epsilon(10**9, collector, chosen) for collector in range(4)}) == 4

    def test_learning_fits_a_constant_reward(self):
        torch.manual_seed(0)
        network = policy.make_network(16)
        learner = policy.DoubleDQN(network, options.Options(learning_rate=1e-2))
        batch = rows(32)
        batch["discount"][:] = 0.0
        losses = [learner.update(batch) for _ in range(200)]
        assert losses[-1] < losses[0] / 10
        learner.publish(network)
        assert all(map(torch.equal, network.parameters(), learner.online.parameters()))


class TestBoard:
    def test_episodes_come_in_the_order_in_which_they_finished(self):
        board, seen = Board(SMALL), np.zeros(SMALL.collector_limit, np.int64)
        for collector, value in ((1, 10.0), (0, 20.0), (1, 30.0)):
            board.finish_episode(collector, value)
            time.sleep(1e-4)
        assert [value for _, value in board.episodes_since(seen)] == [10.0, 20.0, 30.0]
        assert board.episodes_since(seen) == []

    def test_the_log_holds_acknowledged_extends_only(self):
        board = Board(SMALL)
        for count in (0, 4, 8):
            board.begin_extend(1, count)
            board.acknowledge(1)
        board.begin_extend(1, 12)
        numbers, before = board.logged_extends(1)
        assert numbers.tolist() == [0, 1, 2] and before.tolist() == [0, 4, 8]
        assert board.acknowledged_extends().tolist()[:2] == [0, 3]

    def test_the_log_forgets_the_oldest(self):
        board = Board(SMALL)
        for k in range(100):
            board.begin_extend(0, k)
            board.acknowledge(0)
        numbers, before = board.logged_extends(0)
        assert numbers[-1] == 99 and numbers.tolist() == before.tolist()


class Ring:
    """A buffer's content and counters, obvious and breakable."""

    def __init__(self, capacity: int) -> None:
        self.slots: list[TensorDict | None] = [None] * capacity
        self.cursor = self.write_count = 0

    def extend(self, batch: TensorDict) -> None:
        for record in batch:
            self.slots[self.cursor % len(self.slots)] = record
            self.cursor += 1
        self.write_count += len(batch)

    def abandon(self, n: int) -> None:
        for _ in range(n):
            self.slots[self.cursor % len(self.slots)] = None
            self.cursor += 1

    def __getitem__(self, _: slice) -> TensorDict:
        return torch.stack([record for record in self.slots if record is not None])

    def stats(self) -> dict:
        return {"write_count": self.write_count, "capacity": len(self.slots)}


class TestLedger:
    SIZE = SMALL.extend_size

    def filled(self, extends: int, *, capacity: int = 64) -> tuple[Ring, Board]:
        ring, board = Ring(capacity), Board(SMALL)
        batches = [self.batches(collector, extends) for collector in range(2)]
        for k in range(extends):
            for collector in range(2):
                self.write(ring, board, collector, batches[collector][k])
        return ring, board

    def batches(self, collector: int, n: int) -> list[TensorDict]:
        batcher = records.Batcher(self.SIZE, collector)
        zero = np.zeros(4, np.float32)
        found = (batcher.add((zero + k, 0, 1.0, zero, 0.9)) for k in range(n * self.SIZE))
        return [batch for batch in found if batch is not None]

    def write(self, ring: Ring, board: Board, collector: int, batch: TensorDict) -> None:
        board.begin_extend(collector, ring.write_count)
        ring.extend(batch)
        board.acknowledge(collector)

    def faults(self, ring: Ring, board: Board, kills: int = 0) -> dict[str, int]:
        found = audit(ring, board, kills, SMALL).faults
        return {name: count for name, count in found.items() if count}

    @pytest.mark.parametrize("extends", [3, 8, 9, 40])
    def test_all_is_well_before_and_after_the_ring_has_wrapped(self, extends):
        ring, board = self.filled(extends)
        assert self.faults(ring, board) == {}
        assert audit(ring, board, 0, SMALL).owed == min(64, extends * 2 * self.SIZE)

    @pytest.mark.parametrize("slot", [0, 1, 31, 63])
    def test_a_record_that_is_missing_is_lost(self, slot):
        ring, board = self.filled(40)
        ring.slots[slot] = None
        assert self.faults(ring, board) == {"lost": 1}

    def test_a_collector_that_vanished_is_lost(self):
        ring, board = self.filled(8)
        ring.slots = [r if r is not None and r["collector"] == 0 else None for r in ring.slots]
        assert self.faults(ring, board) == {"lost": 32}

    def test_a_repeated_record_is_doubled(self):
        ring, board = self.filled(6)
        ring.slots[60] = ring.slots[2]
        assert self.faults(ring, board) == {"doubled": 1}

    def test_a_torn_record_is_torn(self):
        ring, board = self.filled(6)
        ring.slots[5]["reward"] += 1
        assert self.faults(ring, board) == {"torn": 1}

    def test_a_kill_excuses_one_extend_that_was_written(self):
        ring, board = self.filled(6)
        ring.extend(self.batches(2, 1)[0])
        assert self.faults(ring, board, kills=1) == {}
        assert self.faults(ring, board) == {"unaccounted": 4}

    def test_a_kill_excuses_one_extend_that_was_abandoned(self):
        ring, board = self.filled(40)
        ring.abandon(self.SIZE)
        assert self.faults(ring, board, kills=1) == {}

    def test_acknowledged_but_never_counted_is_a_fault(self):
        ring, board = self.filled(4)
        board.acknowledge(0)
        assert self.faults(ring, board)["unaccounted"] == 4

    def test_what_the_learner_saw_counts(self):
        ring, board = self.filled(4)
        board.note_learner((10, 1280, 2, 3, 10, 0.5))
        assert self.faults(ring, board) == {"torn": 2, "over-issued": 3}

    def test_a_gap_counts_where_nothing_is_owed(self):
        nothing = np.array([], np.int64)
        assert missing(np.array([4, 5, 7]), nothing, 8) == 1
        assert missing(np.array([4, 5, 6, 7, 8, 9]), nothing, 8) == 0
        assert missing(nothing, nothing, 8) == 0


@pytest.mark.parametrize(
    ("ratio", "writes", "returned", "over"), [(4.0, 10, 40, 0), (4.0, 10, 41, 1), (0.3, 10, 3, 0), (0.3, 10, 4, 1)]
)
def test_over_issued_is_what_exceeds_the_whole_part_of_ratio_times_inserts(ratio, writes, returned, over):
    stats = {"target_samples_per_insert": ratio, "write_count": writes, "samples_returned": returned}
    assert over_issued(stats) == over


class TestOptions:
    @pytest.mark.parametrize(
        "text", ["--collectors 0", "--kill-every 0.5", "--samples-per-insert nan", "--start thread"]
    )
    def test_what_makes_no_sense_is_refused(self, text, capsys):
        with pytest.raises(SystemExit) as left:
            options.parse(text.split())
        assert left.value.code == 2 and text.split()[0] in capsys.readouterr().err

    def test_there_is_room_for_every_collector_that_replaces_one(self):
        chosen = options.parse(["--kill-every", "10", "--time-limit", "300"])
        assert chosen.collector_limit >= 4 + 30


class TestReport:
    MOMENT = report.Moment(10.0, 5_000, 20_000, 3.9, 4.0, 4_800, 7, 123.4)

    def test_the_line_tells_rates_and_levels(self):
        later = report.Moment(12.0, 9_000, 36_000, 3.95, 4.0, 8_800, 9, 150.0)
        line = report.describe(self.MOMENT, later)
        for part in ("env 2,000/s", "samples 8,000/s", "ratio 3.95/4", "size 8,800", "waits 9", "return 150.0"):
            assert part in line

    def test_lines_are_few_where_nobody_watches(self, capsys):
        live = report.Live()
        for seconds in np.arange(0, 10, 0.1):
            live.show(report.Moment(seconds, 0, 0, 0.0, 4.0, 0, 0, 0.0))
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_the_chart_is_a_png(self, tmp_path):
        path = tmp_path / "new" / "chart.png"
        report.chart([self.MOMENT, self.MOMENT], 400.0, path)
        assert path.read_bytes().startswith(b"\x89PNG")
