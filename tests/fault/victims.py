"""What victims run; the parent's half is in the tests."""

import scenes
import traps
import whole_state

from shmreplay.shm import table


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
