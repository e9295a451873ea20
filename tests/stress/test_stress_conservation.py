"""What goes in and out adds up: writes, records, generations, budget."""

import time

import numpy as np
import pytest
import torch

import shmreplay
from stress_campaign import records
from stress_campaign.audit import audit
from stress_campaign.crew import Crew
from stress_campaign.workers import ACKNOWLEDGED, AMBIGUOUS, BEGUN, CALLS, ROWS, TORN, Post, Round, sample

N_WRITERS, N_SAMPLERS = 3, 2
ROUNDS = {
    "unlimited": Round("unlimited", 512, 7, 32),
    "limited": Round("limited", 512, 7, 16, samples_per_insert=1.5),
    "both ways": Round("both ways", 512, 7, 16, samples_per_insert=1.5, max_inserts_ahead=64),
    "small ring": Round("small ring", 40, 7, 16),
}


def write_some(round_: Round, buffer, board, writer: int, n_extends: int) -> None:
    """Writes so many times, and notes what returned, as the workers of the campaign do."""
    batches, mine = records.Batches(writer, round_.extend_size), board.writers[writer]
    for number in range(n_extends):
        first = number * round_.extend_size
        mine[BEGUN] = first + round_.extend_size
        slots = buffer.extend(batches.make(first))
        assert len(slots) == len(set(slots.tolist())) == round_.extend_size
        mine[ACKNOWLEDGED] = first + round_.extend_size
        mine[AMBIGUOUS] += round_.extend_size


@pytest.mark.parametrize(
    ("name", "start"), [*((name, "fork") for name in ROUNDS), ("limited", "spawn"), ("small ring", "spawn")]
)
def test_counts_are_conserved(name, start, full, tmp_path):
    torch.set_num_threads(1)
    round_, n_extends = ROUNDS[name], 20_000 if full else 500
    buffer = round_.make_buffer()
    board = round_.make_board(str(tmp_path / "board"), N_SAMPLERS)
    with Crew(start) as samplers, Crew(start) as writers:
        for seat in range(N_SAMPLERS):
            samplers.start(sample, round_, buffer, board, Post(seat, survives=True))
        for writer in range(N_WRITERS):
            writers.start(write_some, round_, buffer, board, writer, n_extends)
        writers.finish(60 + n_extends * 0.05)
        _await_used_up(round_, buffer, samplers)
        board.stop[0] = 1
        samplers.finish()
    _check(round_, buffer, board, N_WRITERS * n_extends * round_.extend_size)


def _await_used_up(round_: Round, buffer, samplers: Crew) -> None:
    deadline = time.monotonic() + 60
    while round_.samples_per_insert and buffer.stats()["sample_budget"] >= round_.batch_size:
        samplers.check()
        assert time.monotonic() < deadline, buffer.stats()
        time.sleep(0.01)


def _check(round_: Round, buffer, board, written: int) -> None:
    stats = buffer.stats()
    assert buffer.write_count == written == board.writers[:, ACKNOWLEDGED].sum()
    assert len(buffer) == stats["storage_size"] == round_.capacity
    generations = buffer.writer.generations_of(torch.arange(round_.capacity))
    assert int((generations + 1).sum()) == written, "each write gives one slot one generation more"
    assert int(generations.max() - generations.min()) <= 1
    assert stats["sample_calls"] == board.seats[:, CALLS].sum()
    assert stats["samples_returned"] == board.seats[:, ROWS].sum()
    assert board.seats[:, TORN].sum() == 0
    if round_.samples_per_insert:
        assert stats["reserved_samples"] == 0
        assert stats["samples_returned"] + stats["sample_budget"] == int(written * round_.samples_per_insert)
    _check_order(buffer)
    account = audit(round_, buffer, board, kills=0)
    assert (account.torn, account.lost, account.doubled, account.leaked) == (0, 0, 0, 0), account.remarks


def _check_order(buffer) -> None:
    """Each writer's records lie in the order of their writing, none missing, up to its last."""
    content = buffer[:]
    cursor = buffer.state_dict()["_writer"]["_cursor"]
    sequences = np.roll(content["sequence"].numpy(), -cursor)
    writers = np.roll(content["writer"].numpy(), -cursor)
    for writer in range(N_WRITERS):
        mine = sequences[writers == writer]
        assert (np.diff(mine) == 1).all(), (writer, mine)
