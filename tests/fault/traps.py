"""What victims do at a named point: be counted, die, stop, or raise."""

import os
import signal
import sys

PREFIX = "shmreplay."


class Raised(Exception):
    """What a user's signal handler might raise."""


EXCEPTIONS = (KeyboardInterrupt, MemoryError, Raised)
_trap = None


def _hook(event: str, _arguments) -> None:
    if _trap is not None and event.startswith(PREFIX):
        _trap(event[len(PREFIX) :])


def _set(trap) -> None:
    global _trap
    if not hasattr(_set, "hooked"):
        sys.addaudithook(_hook)
        _set.hooked = True
    _trap = trap


def disarm() -> None:
    """No trap any more."""
    _set(None)


def record() -> list[str]:
    """The names of the points passed from now on."""
    names = []
    _set(names.append)
    return names


def at(index: int, act) -> None:
    """Run ``act(name)`` at the ``index``-th point from now on, once."""
    passed = [0]

    def trap(name: str) -> None:
        passed[0] += 1
        if passed[0] == index + 1:
            disarm()
            act(name)

    _set(trap)


def at_name(wanted: str, act, occurrence: int = 0) -> None:
    """Run ``act(name)`` at the point ``wanted``, at its ``occurrence``-th pass from now on, once."""
    passed = [0]

    def trap(name: str) -> None:
        if name == wanted:
            passed[0] += 1
            if passed[0] == occurrence + 1:
                disarm()
                act(name)

    _set(trap)


def die(_name: str = "") -> None:
    """SIGKILL, from inside."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_name: str = "") -> None:
    """SIGSTOP, from inside."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raising(exception: type):
    """An act that raises."""

    def act(name: str) -> None:
        raise exception(name)

    return act


def watch(trap) -> None:
    """Run ``trap(name)`` at every point, in every thread, until disarmed."""
    _set(trap)
