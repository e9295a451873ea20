"""Processes whose parent has gone. Importing this module makes the kernel end this process with its parent.

A process that takes seconds to import torch imports this first: until it has, it cannot look for itself.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: int) -> None:
    """Has this process get signal `number` when its parent ends; 0 for none."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


end_with_parent(signal.SIGKILL)
