"""What victims run; the parent's half is in the tests."""

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import life_steps
import scenes
import traps
import whole_state

from shmreplay.shm import table
from shmreplay.shm.limits import NO_LIMITS
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
    left = (limits.call is NO_LIMITS, limits.depth)
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
    held = [Write(2, writing=Writing()), Write(1), Write(1, np.array([scenes.SLOTS[0]]), writing=Writing())]
    ring.reserve(held[0])
    ring.pin(held[1], np.array([3]))
    ring._reserve(held[2], True)
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
    found = (limits.call is NO_LIMITS, limits.depth)
    assert found == (True, 0), (number, found)


def die_committing(connection, path: str, name: str) -> None:
    """Die in or after the commit of two records, at a named point."""
    rb = scenes.enter(path)

    def act(_name: str) -> None:
        connection.send(time.monotonic())
        traps.die()

    traps.at_name("copied", lambda _: traps.at_name(name, act))
    scenes.CALLS["extend"](rb)
    connection.send("not met")


def go_on(connection, path: str) -> None:
    """Go on as a survivor; say how long each call took."""
    connection.send(scenes.go_on(scenes.enter(path)))


def trace_life(connection, step: str, argument) -> None:
    """Say which points a step of a buffer's life passes; see ``life_steps``."""
    connection.send("here")
    connection.recv()
    names = traps.record()
    life_steps.STEPS[step](argument)
    traps.disarm()
    connection.send(names)


def die_in_life(connection, step: str, argument, index: int) -> None:
    """Die at a point of a step of a buffer's life; say where."""

    def act(name: str) -> None:
        connection.send(name)
        traps.die()

    traps.at(index, act)
    life_steps.STEPS[step](argument)
    act("through")


def interrupted_in_life(connection, step: str, argument, index: int) -> None:
    """Leave a step of a buffer's life by an exception; say where, how many descriptors it left, and try again."""
    life_steps.STEPS[step](argument)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    where = []

    def act(name: str) -> None:
        where.append(name)
        raise KeyboardInterrupt(name)

    traps.at(index, act)
    try:
        life_steps.STEPS[step](argument)
    except KeyboardInterrupt:
        pass
    traps.disarm()
    gc.collect()
    connection.send((where[0] if where else "through", len(os.listdir("/proc/self/fd")) - before))
    life_steps.STEPS[step](argument)
    connection.send("again")


def interrupted_share(connection, index: int) -> None:
    """Leave share() by an exception; say where, the records before and after, and whether the buffer goes on."""
    rb = scenes.make((None, None), shared=False)
    before = sorted(rb[:]["number"].tolist())
    where = []

    def act(name: str) -> None:
        where.append(name)
        raise KeyboardInterrupt(name)

    traps.at(index, act)
    try:
        rb.share()
    except KeyboardInterrupt:
        pass
    traps.disarm()
    connection.send((where[0] if where else "through", before, sorted(rb[:]["number"].tolist())))
    rb.share()
    connection.send((rb.shared, scenes.go_on(rb)))


def die_loading(connection, path: str, name: str) -> None:
    """Die in ``load_state_dict``, at a named point."""
    rb = scenes.enter(path)
    saved = rb.state_dict()

    def act(_name: str) -> None:
        connection.send(name)
        traps.die()

    traps.at_name(name, act)
    rb.load_state_dict(saved)
    connection.send("not met")


def interrupted_beside_a_thread(connection, path) -> None:
    """One thread is interrupted as it reserves budget; another takes the row that is free again, before the first one
    settles. Say what was counted."""
    rb = scenes.enter(path) if path is not None else scenes.make((None, None), shared=False)
    me, freed, taken, settled = threading.get_ident(), threading.Event(), threading.Event(), threading.Event()
    raised = []

    def trap(name: str) -> None:
        mine = threading.get_ident() == me
        if mine and name == "locked.finishing" and not raised:
            raised.append(name)
            raise traps.Raised
        if mine and name == "settle":
            freed.set()
            taken.wait(10)
        if not mine and name == "admitted":
            taken.set()
            settled.wait(10)

    def other() -> None:
        freed.wait(10)
        rb.sample()

    thread = threading.Thread(target=other)
    thread.start()
    traps.watch(trap)
    try:
        rb.sample()
    except traps.Raised:
        pass
    freed.set()
    settled.set()
    thread.join()
    traps.disarm()
    stats = rb.stats()
    connection.send((stats["samples_returned"], stats["reserved_samples"], stats["sample_budget"]))
