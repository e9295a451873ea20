"""Forks in odd places: the child goes on or is refused, and is never taken for its parent."""

import os
import signal

import pytest

import lives_leaks
import lives_fork
from nursery import NURSERY, home, segments  # noqa: F401


@pytest.fixture(params=["pthread", "flock"])
def lock(request, monkeypatch):
    monkeypatch.setenv("SHMREPLAY_LOCK", request.param)
    return request.param


@pytest.mark.parametrize("width", [4, lives_fork.LARGE])
def test_while_other_threads_hold_the_lock_or_copy(home, lock, width):  # noqa: F811
    NURSERY.run(lives_fork.while_threads_run, 25, width)


@pytest.mark.parametrize("method", ["write", "read", "noncontiguous", "empty"])
def test_after_the_parent_used_torch_with_two_threads(home, method):  # noqa: F811
    NURSERY.run(lives_fork.after_openmp, method)


def test_from_a_process_that_never_used_the_buffer(home, lock):  # noqa: F811
    owner = NURSERY.start(lives_fork.own_for_others)
    child = NURSERY.start(lives_fork.never_used)
    child.tell(owner.hear())
    child.finish()
    owner.tell()
    owner.finish()


def test_forks_of_forks(home, lock):  # noqa: F811
    seen = NURSERY.run(lives_fork.nested)
    assert len(set(seen["rows"])) == 4 and len(set(seen["incs"])) == 4
    assert seen["live"] == [1, 2, 3, 4] and seen["left"] == 1


def test_while_a_thread_waits_for_budget(home, lock):  # noqa: F811
    NURSERY.run(lives_fork.while_blocked)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_in_the_workers_of_a_data_loader(home, method):  # noqa: F811
    seen = NURSERY.run(lives_fork.in_data_loader, method)
    assert seen["rows"] == seen["calls"] == 40 and seen["different"] == 40


@pytest.mark.parametrize("kind", ["tensor", "memmap", "list"])
def test_an_unshared_buffer_names_share(home, kind):  # noqa: F811
    for text in NURSERY.run(lives_fork.unshared, kind):
        assert "share()" in text, text


def test_the_parent_keeps_its_seat_whatever_its_children_do(home, lock):  # noqa: F811
    child = NURSERY.start(lives_fork.parent_keeps_its_seat)
    path, row, inc = child.hear()
    dead = NURSERY.run(lives_fork.is_dead, path, row, inc)
    child.tell(not dead)
    assert child.finish() == {"alive": True, "same": True, "live": 1}


@pytest.mark.parametrize("how", ["python", "libc"])
def test_a_parent_that_was_killed_is_dead_though_its_forked_child_lives(home, how):  # noqa: F811
    parent = NURSERY.start(lives_fork.leave_a_fork, how)
    path, orphan = parent.hear()
    try:
        other = NURSERY.start(lives_fork.go_on, path)
        assert other.hear() == "attached" and parent.hear() == "holds"
        parent.kill()
        other.tell()
        seen = other.finish()
        assert seen["reserved_samples"] == 0 and seen["samples_returned"] == 512 and seen["live_members"] == 1, seen
        assert seen["sample_budget"] == 0, seen
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_creation_that_was_under_way_at_the_fork_holds_nobody_up(home):  # noqa: F811
    parent = NURSERY.start(lives_fork.creating_while_forked)
    orphan = parent.hear()
    try:
        parent.kill()
        assert NURSERY.run(lives_leaks.create_once, timeout=20) == [] and segments() == []
    finally:
        os.kill(orphan, signal.SIGKILL)
