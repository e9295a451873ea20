"""A stopped process is not dead: calls with a deadline raise TimeoutError, and all goes on after SIGCONT."""

import signal

import pytest
import scenes
import victims
import whole_state

KINDS = [("pthread", "futex"), ("flock", "poll")]
_INSIDE = [
    ("extend", "locked.acquired"),
    ("extend", "locked.begun"),
    ("extend", "locked.stamps.odd"),
    ("extend", "locked.stamps.whole"),
    ("sample", "locked.admit.row"),
    ("sample", "locked.settle.reserved"),
    ("wait", "locked.queue.entered"),
    ("empty", "locked.epoch"),
    ("ratio", "locked.changed"),
]


def _stop(zygote, rb, call: str, point: str):
    victim = zygote.victim(victims.stop_at_name, rb.path, call, point)
    assert victim.recv() == "stopping"
    victim.wait_stopped()
    return victim


def _continue(victim) -> None:
    victim.signal(signal.SIGCONT)
    assert victim.recv() == "done"
    victim.wait_end()


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("call, point", _INSIDE)
def test_holder_of_the_lock_is_stopped(zygote, kinds, call, point):
    rb = scenes.make(kinds)
    victim = _stop(zygote, rb, call, point)
    with pytest.raises(TimeoutError):
        rb.extend(scenes.batch(50, 1), timeout=0.05)
    with pytest.raises(TimeoutError):
        rb.sample(wait=True, timeout=0.05)
    assert whole_state.counters(rb) == (0, 0), "a stopped process was taken for a dead one"
    _continue(victim)
    scenes.go_on(rb)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("point", ["reserved", "copying", "copied"])
def test_writer_is_stopped_between_reserve_and_commit(zygote, kinds, point):
    rb = scenes.make(kinds)
    victim = _stop(zygote, rb, "extend", point)
    assert rb.sample(wait=True, timeout=5.0)["number"].shape == (scenes.BATCH,)
    with pytest.raises(TimeoutError):
        for number in range(scenes.CAPACITY):
            rb.extend(scenes.batch(50 + number, 1), timeout=0.1)
    assert (number, rb.stats()["waiting"]) == (scenes.CAPACITY - 2, 0), "up to the slots in flight"
    _continue(victim)
    assert rb.write_count == scenes.WRITTEN + scenes.CAPACITY
    scenes.go_on(rb)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_sample_whose_deadline_passes_while_it_settles(zygote, kinds):
    """It raises or returns, but the budget that it held is not lost."""
    rb = scenes.make(kinds)
    sampler = zygote.victim(victims.sample_past_deadline, rb.path)
    assert sampler.recv() == "settle"
    holder = _stop(zygote, rb, "extend", "locked.begun")
    sampler.send("go on")
    assert sampler.recv() in ("timed out", "returned")
    _continue(holder)
    sampler.send("go on")
    sampler.recv()
    sampler.wait_end()
