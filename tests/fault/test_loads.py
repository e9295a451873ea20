"""A death in ``load_state_dict``: nothing half-loaded ever shows, and the gate opens again."""

import pytest
import scenes
import victims

KINDS = [("pthread", "futex"), ("flock", "poll")]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("point", ["load.held", "load.written"])
def test_death_in_a_load_leaves_the_buffer_empty(zygote, kinds, point):
    rb = scenes.make(kinds)
    old = rb.writer.generations_of(list(range(scenes.CAPACITY)))
    victim = zygote.victim(victims.die_loading, rb.path, point)
    assert victim.recv() == point
    victim.wait_end()
    rb.extend(scenes.batch(50, 1), timeout=5.0)
    assert len(rb) == 1 and rb[:]["number"].tolist() == [50]
    assert (rb.writer.generations_of(list(range(scenes.CAPACITY))) >= old).all(), "a stale handle lives"
    assert max(scenes.go_on(rb)) < 1.0
