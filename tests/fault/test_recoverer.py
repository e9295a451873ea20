"""The recoverer dies too: at each point of recovery and of burying, after a death in each operation."""

import points_table
import pytest
import scenes
import test_deaths
import victims
import whole_state

from shmreplay.state.control import GATE_LOAD, GATE_SNAPSHOT

KINDS = [("pthread", "futex"), ("flock", "poll")]
_MOST = 60  # points on the way of a recovery; only guards
_seen = set()


def _one_of_each_operation() -> list[tuple]:
    """A middle and the last row of each operation of each call."""
    by_operation = {}
    for row in points_table.flat():
        if row[3] is not None:
            by_operation.setdefault((row[0], row[3]), []).append(row)
    return [row for rows in by_operation.values() for row in {rows[len(rows) // 2], rows[-1]}]


ROWS = sorted(_one_of_each_operation(), key=lambda row: row[:2])


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("call, index, point, operation, left", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_recoverer_dies(zygote, kinds, call, index, point, operation, left):
    before, after = test_deaths._reference(zygote, kinds, call)
    expected = left.expected(before, after, scenes.slots_of(call))
    for at in range(_MOST):
        rb = scenes.prepared(kinds, call)
        second = zygote.victim(victims.die_recovering, rb.path, at)
        assert second.recv() == "here"
        first = test_deaths._die(zygote, rb, call, index)[2]
        second.send(None)
        name, seat = second.recv()
        second.wait_end()
        _seen.add(name)
        scenes.next_call(rb)
        rb._ring.probe(*seat)
        found = test_deaths._resolved(rb, first)
        assert whole_state.differences(found, expected) == {}, (at, name)
        rb._storage.state.check_valid()
        if name in ("locked.changed", "through"):  # past the recovery
            assert at > 2
            return
    raise AssertionError("the recovery does not end")


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("gate", [0, GATE_SNAPSHOT, GATE_LOAD], ids=["no gate", "snapshot", "load"])
def test_burier_dies(zygote, kinds, gate):
    expected, names = None, []
    for at in range(-1, _MOST):
        rb = scenes.make(kinds)
        burier = zygote.victim(victims.die_recovering, rb.path, at) if at >= 0 else None
        assert burier is None or burier.recv() == "here"
        laden = zygote.victim(victims.die_laden, rb.path, gate)
        owner = laden.recv()[1]
        laden.wait_end()
        if at >= 0:
            burier.send(owner)
            name, seat = burier.recv()
            burier.wait_end()
            names.append(name)
            rb._ring.probe(*seat)
        found = test_deaths._resolved(rb, owner)
        expected = expected or found
        assert whole_state.differences(found, expected) == {}, (at, names[-1:])
        assert (found["journal"], found["reservations"], found["W_GATE"], found["members"]) == ([], [], 0, 1)
        if gate != GATE_LOAD:
            scenes.go_on(rb)
        if names[-1:] == ["through"]:
            break
    assert {"locked.bury.gate", "locked.bury.forgotten", "locked.bury.row", "buried"} <= set(names)


def test_every_point_of_recovery_was_met(zygote):
    wanted = {"locked.recover", "locked.recovery.applied", "locked.recovered", "locked.ownerdead"}
    if len(_seen) > 5:  # with the tests above in the same run
        assert wanted <= _seen


def test_recoverer_interrupted_before_the_mutex_is_consistent(zygote):
    rb = scenes.make(("pthread", "futex"))
    victim = zygote.victim(victims.leave_not_recoverable, rb.path)
    assert victim.recv() == "here"
    test_deaths._die(zygote, rb, "extend", 8)
    victim.send("now")
    assert victim.recv() == "left"
    victim.wait_end()
    survivor = zygote.victim(victims.go_on, rb.path)  # a process of its own: a broken mutex may crash it
    assert max(survivor.recv()) < 1.0
    survivor.wait_end()
