"""One exception at each named point of each call - SIGINT, a raising handler, MemoryError - shared and unshared."""

import points_table
import pytest
import scenes
import traps
import victims
import whole_state

SEATS = [("pthread", "futex"), ("flock", "poll"), None]  # None: unshared
ROWS = points_table.flat()
_SOON = 0.1
_known = {}


def _interrupt(zygote, kinds, call: str, index: int) -> tuple:
    rb = scenes.prepared(kinds, call) if kinds is not None else None
    exception = traps.EXCEPTIONS[index % len(traps.EXCEPTIONS)]
    path = rb.path if rb is not None else None
    victim = zygote.victim(victims.interrupted_at, path, kinds or (None, None), call, index, exception)
    said = victim.recv()
    durations = victim.recv() if index >= 0 else []
    victim.wait_end()
    return *said, durations


@pytest.mark.parametrize("kinds", SEATS, ids=lambda kinds: "-".join(kinds) if kinds else "unshared")
@pytest.mark.parametrize("call, index, point, operation, left", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_interruption(zygote, kinds, call, index, point, operation, left):
    if kinds is None and point in ("layout.written", "layout.renamed"):
        pytest.skip("an unshared buffer has no files")
    if (kinds, call) not in _known:
        _known[kinds, call] = _interrupt(zygote, kinds, call, -1)[2]
    if kinds is None and call == "first" and index > 7:
        index -= 4
    for _ in range(3):
        said, before, found, fallen, limits, durations = _interrupt(zygote, kinds, call, index)
        assert tuple(said) == (point, operation)
        expected = left.expected(before, _known[kinds, call], scenes.slots_of(call))
        assert whole_state.differences(found, expected) == {}
        assert not fallen
        assert limits == (True, 0)
        if max(durations) < _SOON:
            return
    raise AssertionError(f"the next calls took {durations} s")


@pytest.mark.parametrize("shared", [True, False])
def test_a_thread_that_takes_the_freed_row_keeps_it(zygote, shared):
    rb = scenes.make(("pthread", "futex")) if shared else None
    victim = zygote.victim(victims.interrupted_beside_a_thread, rb.path if shared else None)
    counted = victim.recv()
    victim.wait_end()
    assert counted == (scenes.BATCH, 0, scenes.RATIO * scenes.WRITTEN - scenes.BATCH)
