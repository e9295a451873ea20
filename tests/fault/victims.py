"""What victims run; the parent's half is in the tests."""

import random
import signal
import time

import numpy as np
import scenes
import traps
import whole_state

from shmreplay.shm import table
from shmreplay.shm.table import R_SAMPLE
from shmreplay.state.ledger import Claim
from shmreplay.state.ring import Write, Writing


def seat_of(rb) -> tuple[int, int]:
    """(row, incarnation) of this process."""
    return rb._segment.row, rb._segment.inc


def operation_of(rb) -> int | None:
    """The operation word; None when no operation is open."""
    return rb._segment.words[table.OP >> 3] or None


def trace(connection, path: str, call: str) -> None:
    """Say which points the call passes."""
    rb = scenes.enter(path)
    names = traps.record()
    scenes.CALLS[call](rb)
    traps.disarm()
    connection.send(names)


def die_at(connection, path: str, call: str, index: int) -> None:
    """Die at a point of the call, having said where; -1 before it, -2 after it."""
    rb = scenes.enter(path)

    def act(name: str) -> None:
        connection.send((name, operation_of(rb), seat_of(rb)))
        traps.die()

    if index == -1:
        act("before")
    if index >= 0:
        traps.at(index, act)
    scenes.CALLS[call](rb)
    act("after")


def interrupted_at(connection, path, kinds, call: str, index: int, exception: type) -> None:
    """Leave the call by an exception at a point, then say what the state is; -1: let it return.

    ``path`` None: an unshared buffer of this process. Says the point, the operation word there, the whole state before
    the call and after the next one, whether revisions fell, limits that were left, and how long going on took.
    """
    rb = scenes.enter(path) if path is not None else scenes.prepared(kinds, call, shared=False)
    rb._segment.seat()
    said, before, old = [], whole_state.take(rb), whole_state.revisions(rb)

    def act(name: str) -> None:
        said.extend((name, operation_of(rb)))
        raise exception(name)

    if index >= 0:
        traps.at(index, act)
    try:
        scenes.CALLS[call](rb)
        assert index < 0, "the exception was swallowed"
    except exception:
        pass
    scenes.next_call(rb)
    fallen = bool((whole_state.revisions(rb) < old).any())
    limits = rb._ring.limits
    left = (limits.deadline, rb._segment.lock.here.deadline, limits.depth)
    connection.send((said, before, whole_state.take(rb), fallen, left))
    if index >= 0:
        rb._storage.state.check_valid()
        connection.send(scenes.go_on(rb))


def die_recovering(connection, path: str, index: int) -> None:
    """Be a member; when told whom to bury, take the lock, bury it, and die at a point on the way; say where."""
    rb = scenes.enter(path)
    connection.send("here")
    owner = connection.recv()

    def act(name: str) -> None:
        connection.send((name, seat_of(rb)))
        traps.die()

    traps.at(index, act)
    scenes.next_call(rb)
    if owner is not None:
        rb._ring.probe(*owner)
    act("through")


def die_laden(connection, path: str, gate: int) -> None:
    """Die as the owner of an open write, a pin, budget, a ticket in each queue, and a gate (0: none)."""
    rb = scenes.enter(path)
    ring, ledger = rb._ring, rb._ledger
    held = [Write(2), Write(1), Write(1, np.array([scenes.SLOTS[0]]))]
    ring.reserve(held[0], Writing())
    ring.pin(held[1], np.array([3]))
    ring._reserve(held[2], Writing(), True)
    ledger.admit(Claim(R_SAMPLE, 3), False)
    ledger._try(Claim(R_SAMPLE, scenes.MORE_THAN_BUDGET), True)
    if gate:
        ring.set_words(lambda _, words: _take_gate(words, gate, *seat_of(rb)))
    connection.send(("laden", seat_of(rb)))
    traps.die()


def _take_gate(words, gate: int, row: int, inc: int) -> None:
    words[table.W_GATE_ROW], words[table.W_GATE_INC], words[table.W_GATE] = row, inc, gate


def leave_not_recoverable(connection, path: str) -> None:
    """Be interrupted between finding the dead owner and saying that the mutex is consistent; then die."""
    rb = scenes.enter(path)
    connection.send("here")
    connection.recv()
    traps.at_name("locked.ownerdead", traps.raising(KeyboardInterrupt))
    try:
        scenes.next_call(rb)
    except KeyboardInterrupt:
        connection.send("left")
    traps.die()


def die_at_name(connection, path: str, call: str, name: str) -> None:
    """Be a member; when told, die at the first pass of a named point of the call; say when, just before."""
    rb = scenes.enter(path)
    connection.send("here")
    connection.recv()

    def act(_name: str) -> None:
        connection.send(time.monotonic())
        traps.die()

    traps.at_name(name, act)
    scenes.CALLS[call](rb)
    connection.send("not met")


def sample_waiting(connection, path: str, n: int) -> None:
    """A blocked sample; says when it waits, and when it was served."""
    rb = scenes.enter(path)
    traps.at_name("waiting", lambda name: connection.send(name))
    rb.sample(n, wait=True)
    connection.send(time.monotonic())


def stop_at_name(connection, path: str, call: str, name: str) -> None:
    """Stop at a named point; go on when continued."""
    rb = scenes.enter(path)

    def act(_name: str) -> None:
        connection.send("stopping")
        traps.stop()

    traps.at_name(name, act)
    scenes.CALLS[call](rb)
    connection.send("done")


def sample_past_deadline(connection, path: str) -> None:
    """A sample with a deadline that comes to settle while a stopped process is inside the lock; then a second one."""
    rb = scenes.enter(path)

    def act(name: str) -> None:
        connection.send(name)
        connection.recv()

    traps.at_name("settle", act)
    try:
        rb.sample(timeout=0.05)
        connection.send("returned")
    except TimeoutError:
        connection.send("timed out")
    connection.recv()
    connection.send(scenes.go_on(rb))


class _Handled(Exception):
    """What the handler of these victims raises."""


def _raise_handled(_number, _frame) -> None:
    raise _Handled


def storm(connection, path, kinds, call: str, tries: int, seed: int) -> None:
    """Interrupt a call by real signals after random microseconds; the state is whole after each.

    Says how many tries were interrupted.
    """
    rb = scenes.enter(path) if path is not None else scenes.make(kinds, shared=False)
    random_delay, hits = random.Random(seed), 0
    signal.signal(signal.SIGALRM, _raise_handled)
    run = scenes.CALLS[call]
    longest = _duration(rb, run)
    for number in range(tries):
        if call in ("sample", "empty"):
            rb.extend(scenes.batch(number, 2))
        try:
            signal.setitimer(signal.ITIMER_REAL, random_delay.uniform(1e-6, longest))
            try:
                run(rb)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _Handled:
            hits += 1
        _check_nothing_left(rb, number)
    connection.send(hits)
    rb.extend(scenes.batch(0, 2))
    connection.send(scenes.go_on(rb))


def _duration(rb, run) -> float:
    durations = []
    for _ in range(5):
        start = time.monotonic()
        run(rb)
        durations.append(time.monotonic() - start)
    return max(20e-6, sorted(durations)[2])


def _check_nothing_left(rb, number: int) -> None:
    scenes.next_call(rb)
    rb._storage.state.check_valid()
    state = whole_state.take(rb)
    names = ("journal", "reservations", "samplers queue", "writes queue", "W_GATE")
    left = {name: state[name] for name in names}
    assert left == {name: left_empty for name, left_empty in zip(names, ([], [], (0, ()), (0, ()), 0))}, (number, left)
    limits = rb._ring.limits
    found = (limits.deadline, rb._segment.lock.here.deadline, limits.depth)
    assert found == (None, None, 0), (number, found)


def die_committing(connection, path: str, name: str) -> None:
    """Die in or after the commit of two records, at a named point."""
    rb = scenes.enter(path)

    def act(_name: str) -> None:
        connection.send(time.monotonic())
        traps.die()

    traps.at_name("copied", lambda _: traps.at_name(name, act))
    scenes.CALLS["extend"](rb)
    connection.send("not met")
