"""Real signals: a handler raises after a random time, thousands of times; the state is whole after each."""

import os

import pytest
import scenes
import victims

SEATS = [("pthread", "futex"), ("flock", "poll"), None]
_TRIES = int(os.environ.get("SHMREPLAY_TEST_SIGNALS", "1000"))


@pytest.mark.parametrize("kinds", SEATS, ids=lambda kinds: "-".join(kinds) if kinds else "unshared")
@pytest.mark.parametrize("call", ["extend", "write_at", "sample", "empty", "pin", "ratio", "snapshot"])
def test_storm(zygote, kinds, call):
    rb = scenes.make(kinds) if kinds is not None else None
    path = rb.path if rb is not None else None
    victim = zygote.victim(victims.storm, path, kinds or (None, None), call, _TRIES, 11)
    hits = victim.recv()
    assert hits > _TRIES // 20, "the signals came too late to hit the call"
    victim.recv()
    victim.wait_end()
