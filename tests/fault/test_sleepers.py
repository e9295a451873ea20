"""Blocked samples: no death between commit and wake leaves one asleep, and a killed one holds nothing up."""

import os
import time

import pytest
import scenes
import victims

from shmreplay.shm.event import NAP

KINDS = [("pthread", "futex"), ("flock", "poll"), ("pthread", "poll"), ("flock", "futex")]
_KILLS = int(os.environ.get("SHMREPLAY_TEST_KILLS", "200"))  # the guarantee speaks of 1,000
_IDLE = 0.05  # seconds that a loaded machine may add


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("point", ["locked.counted", "locked.finishing", "committed", "notify"])
def test_no_death_between_commit_and_wake_leaves_a_sleeper(zygote, kinds, point):
    """This process only waits: nobody but the sleeper itself is awake after the death."""
    delays = []
    for _ in range(5):
        rb = scenes.make(kinds)
        sleeper = zygote.victim(victims.sample_waiting, rb.path, scenes.RATIO * (scenes.WRITTEN + 2))
        assert sleeper.recv() == "waiting"
        committer = zygote.victim(victims.die_committing, rb.path, point)
        died = committer.recv()
        assert isinstance(died, float)
        served = sleeper.recv()
        committer.wait_end()
        sleeper.wait_end()
        delays.append(served - died)
        if delays[-1] < 2 * NAP + _IDLE:
            return
    raise AssertionError(f"it slept on for {delays} s")


@pytest.mark.parametrize("kinds", [("pthread", "futex"), ("flock", "poll")], ids="-".join)
def test_killed_while_blocked(zygote, kinds):
    """After each kill the next extend and sample go on at once, no budget is missing and no ticket is left."""
    rb, slow = scenes.make(kinds), []
    for number in range(_KILLS):
        victim = zygote.victim(victims.sample_waiting, rb.path, scenes.MORE_THAN_BUDGET + 4)
        assert victim.recv() == "waiting"
        victim.kill()
        start = time.monotonic()
        rb.extend(scenes.batch(100 + 2 * number, 2), timeout=10.0)
        rb.sample(wait=True, timeout=10.0)
        slow.append(time.monotonic() - start)
        stats = rb.stats()
        assert (stats["waiting"], stats["reserved_samples"], stats["live_members"]) == (0, 0, 1)
        assert stats["sample_budget"] == scenes.RATIO * scenes.WRITTEN
    slow.sort()
    assert slow[len(slow) * 9 // 10] < 0.1, slow[-len(slow) // 10 :]
    rb._storage.state.check_valid()
