"""Sleeping and waking on a 32-bit word in shared memory, in two kinds.

Who waits reads the word under the lock, releases the lock, and sleeps only while the word is what it read; who wakes
increments the word under the lock and calls ``wake`` after it. So no wake is lost between the two. A waker that dies
between the increment and the wake costs its sleeper one nap: no sleep is longer than ``NAP``.
"""

import ctypes
import os
import sys
import time

from . import libc

NAP = 0.05
_LOOK = 0.001


class FutexEvent:
    """Sleeps in the kernel until woken."""

    @staticmethod
    def nap(address: int, seen: int, deadline: float | None) -> bool:
        """Sleep on the word at ``address`` while it is ``seen``; at most one nap, never past ``deadline``.

        Returns True if the word changed or was woken, False if the nap was slept out.
        """
        timeout = NAP
        if deadline is not None:
            timeout = min(timeout, deadline - time.monotonic())
            if timeout <= 0:
                return False
        return libc.futex_wait(address, seen, timeout)

    @staticmethod
    def wake(addresses: list[int], path: str | None) -> None:
        """Wake who sleeps on each of ``addresses``; raises the audit event ``shmreplay.notify`` first."""
        sys.audit("shmreplay.notify", path)
        for address in addresses:
            libc.futex_wake(address)
        os.sched_yield()  # on a busy machine the sleeper may be on this core


class PollEvent:
    """Looks at the word every millisecond; for systems without futex."""

    @staticmethod
    def nap(address: int, seen: int, deadline: float | None) -> bool:
        """As ``FutexEvent.nap``."""
        word = ctypes.c_int.from_address(address)
        until = time.monotonic() + NAP
        if deadline is not None:
            until = min(until, deadline)
        while word.value == seen:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return True

    @staticmethod
    def wake(addresses: list[int], path: str | None) -> None:
        """Nothing to do but the audit event: sleepers look for themselves."""
        sys.audit("shmreplay.notify", path)


KINDS = {"futex": FutexEvent, "poll": PollEvent}
