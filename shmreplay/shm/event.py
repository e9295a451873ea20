"""Sleeping and waking on a 32-bit word in shared memory.

Who waits reads the word under the lock, releases the lock, and sleeps only while the word is what it read; who wakes
increments the word under the lock and calls ``wake`` after it. So no wake is lost between the two. A waker that dies
between the increment and the wake costs its sleeper one nap: no sleep is longer than ``NAP``.
"""

import sys
import time

from . import libc

NAP = 0.05


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


def wake(addresses: list[int], path: str) -> None:
    """Wake who sleeps on each of ``addresses``; raises the audit event ``shmreplay.notify`` first."""
    sys.audit("shmreplay.notify", path)
    for address in addresses:
        libc.futex_wake(address)
