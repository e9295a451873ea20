"""The calls that are cut short: how a buffer is prepared, and what a victim calls on it."""

import time
import warnings

import numpy as np
import torch

import shmreplay
from shmreplay.buffers.limited import limits_of
from shmreplay.shm.limits import NO_LIMITS
from shmreplay.state.ring import Write, Writing

CAPACITY, WRITTEN, RATIO, BATCH = 8, 15, 2, 4
SLOTS = (7, 0)  # the next two at the cursor: the end of the ring and its beginning


FIRST_SLOTS = (0, 1)
MORE_THAN_BUDGET = RATIO * WRITTEN + 1
warnings.filterwarnings("ignore", message="Got conflicting batch_sizes")


def slots_of(call: str) -> tuple:
    """The slots that a call writes, in order."""
    return FIRST_SLOTS if call == "first" else SLOTS


def prepared(kinds: tuple[str, str], call: str, *, shared: bool = True):
    """The buffer that a call starts from."""
    return make(kinds, shared=shared, written=0 if call == "first" else WRITTEN)


def batch(first: int, n: int) -> dict:
    """``n`` records: a row and a large column, each naming its number throughout."""
    numbers = torch.arange(first, first + n)
    return {"number": numbers, "wide": numbers[:, None].expand(n, 300).float()}


def make(kinds: tuple[str, str], *, shared: bool = True, written: int = WRITTEN):
    """A full, wrapped ring with budget left; capacity 8, so that two records are a quarter."""
    storage = shmreplay.LazyTensorStorage(CAPACITY, lock=kinds[0], event=kinds[1])
    rb = shmreplay.RateLimitedReplayBuffer(
        storage=storage,
        writer=shmreplay.RoundRobinWriter(track_generations=True),
        samples_per_insert=RATIO,
        batch_size=BATCH,
        shared=shared,
    )
    for number in range(0, written):
        rb.extend(batch(number, 1))
    return rb


def _extend(rb) -> None:
    rb.extend(batch(100, 2))


def _write_at(rb) -> None:
    rb.writer.write_at(torch.tensor(SLOTS), batch(100, 2))


def _sample(rb) -> None:
    rb.sample()


def _wait(rb) -> None:
    """A blocked sample that ends by its deadline."""
    try:
        rb.sample(MORE_THAN_BUDGET, wait=True, timeout=0.02)
    except TimeoutError:
        return
    raise AssertionError("it should have waited in vain")


def _blocked(rb) -> None:
    """A write that waits in vain for slots in flight, those of an open write of the same process."""
    ring, open_write = rb._ring, Write(2, writing=Writing())
    ring.guarded(open_write, lambda: _wait_for(rb, open_write))


def _wait_for(rb, open_write: Write) -> None:
    limits = rb._ring.limits
    rb._ring.reserve(open_write)
    try:
        limits.call = limits_of(rb, 0.02, None)
        rb.writer.write_at(torch.tensor([SLOTS[0]]), batch(100, 1))
    except TimeoutError:
        return
    finally:
        limits.call = NO_LIMITS
    raise AssertionError("it should have waited in vain")


def _pin(rb) -> None:
    write = Write(2)
    rb._ring.guarded(write, lambda: rb._ring.pin(write, np.arange(CAPACITY)))


def _abandon(rb) -> None:
    write = Write(2, writing=Writing())
    rb._ring.guarded(write, lambda: rb._ring.reserve(write))


def _empty(rb) -> None:
    rb.empty()


def _ratio(rb) -> None:
    rb.samples_per_insert = RATIO + 1


def _close(rb) -> None:
    rb._ring.close()  # what shutdown(everywhere=True) shares


def _snapshot(rb) -> None:
    rb.state_dict()


CALLS = {
    "extend": _extend,
    "first": _extend,
    "write_at": _write_at,
    "sample": _sample,
    "wait": _wait,
    "blocked": _blocked,
    "pin": _pin,
    "abandon": _abandon,
    "empty": _empty,
    "ratio": _ratio,
    "close": _close,
    "snapshot": _snapshot,
}


def enter(path: str):
    """The buffer at ``path``, this process a member of it, what it needs at hand."""
    rb = shmreplay.attach(path)
    rb.stats()
    rb._storage._known_layout()
    return rb


def next_call(rb) -> None:
    """The least that a call does: pay what this process owes, take the lock - which resolves what a holder left."""
    rb._ring.pay_debts()
    rb._ring.set_words(lambda held, words: None)


def go_on(rb) -> list[float]:
    """Write round the whole ring, sample, and use the budget up; how long each call took, in seconds."""
    durations = []

    def timed(call, *arguments, **options) -> None:
        start = time.monotonic()
        call(*arguments, timeout=2.0, **options)
        durations.append(time.monotonic() - start)

    timed(rb.extend, batch(200, 2))
    timed(rb.sample, wait=True)
    for number in range(202, 202 + CAPACITY, 2):
        timed(rb.extend, batch(number, 2))
    stats = rb.stats()
    ratio = int(stats["target_samples_per_insert"])
    assert ratio in (RATIO, RATIO + 1)
    left = ratio * stats["write_count"] - stats["samples_returned"]
    timed(rb.sample, left, wait=True)
    stats = rb.stats()
    assert (stats["sample_budget"], stats["reserved_samples"], stats["waiting"]) == (0, 0, 0), stats
    rb._storage.state.check_valid()
    numbers = sorted(rb[:]["number"].tolist())
    assert numbers == list(range(202, 202 + CAPACITY)), numbers
    return durations
