"""One death at each named point of each call: the whole state, and that the survivors go on at once."""

import points_table
import pytest
import scenes
import victims
import whole_state

KINDS = [("pthread", "futex"), ("flock", "poll"), ("pthread", "poll"), ("flock", "futex")]
ROWS = points_table.flat()
_SOON = 0.1  # seconds for any call of a survivor, one recovery included; the best of a few
_known = {}


def _die(zygote, rb, call: str, index: int) -> tuple:
    victim = zygote.victim(victims.die_at, rb.path, call, index)
    said = victim.recv()
    victim.wait_end()
    return said


def _resolved(rb, seat) -> dict:
    """The whole state after a survivor's next call, and after whoever is in the way of the dead buried them."""
    scenes.next_call(rb)
    rb._ring.probe(*seat)
    return whole_state.take(rb)


def _reference(zygote, kinds, call: str) -> tuple[dict, dict]:
    """The whole state after a death before the call, and after one behind it."""
    if (kinds, call) not in _known:
        states = []
        for index in (-1, -2):
            rb = scenes.prepared(kinds, call)
            states.append(_resolved(rb, _die(zygote, rb, call, index)[2]))
        _known[kinds, call] = states
    return _known[kinds, call]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("call, index, point, operation, left", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_state(zygote, kinds, call, index, point, operation, left):
    before, after = _reference(zygote, kinds, call)
    rb = scenes.prepared(kinds, call)
    old = whole_state.revisions(rb)
    name, found_operation, seat = _die(zygote, rb, call, index)
    assert (name, found_operation) == (point, operation)
    found = _resolved(rb, seat)
    assert whole_state.differences(found, left.expected(before, after, scenes.slots_of(call))) == {}
    rb._storage.state.check_valid()
    assert whole_state.counters(rb) == (operation is not None, 1)
    assert (whole_state.revisions(rb) >= old).all()


@pytest.mark.parametrize("kinds", KINDS[:2], ids="-".join)
@pytest.mark.parametrize("call, index, point, operation, left", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_survivors_go_on(zygote, kinds, call, index, point, operation, left):
    """Without burying first: what stands in the way is found by the calls themselves."""
    longest = []
    for _ in range(3):
        rb = scenes.prepared(kinds, call)
        _die(zygote, rb, call, index)
        longest.append(max(scenes.go_on(rb)))
        if longest[-1] < _SOON:
            return
    raise AssertionError(f"calls of the survivor took {longest} s")


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("call", points_table.ROWS)
def test_the_table_names_every_point_that_a_call_passes(zygote, kinds, call):
    rb = scenes.prepared(kinds, call)
    victim = zygote.victim(victims.trace, rb.path, call)
    names = victim.recv()
    victim.wait_end()
    assert names == [row[0] for row in points_table.ROWS[call]]
