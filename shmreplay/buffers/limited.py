"""What bounds the waits below a public call."""

import weakref

from ..checks import as_deadline
from ..shm.limits import Call

__all__ = ["limits_of"]


def limits_of(buffer, timeout, cancel_event) -> Call:
    """The limits of one call on ``buffer``; to be set and put back by plain stores around it.

    Raises:
        TypeError, ValueError: a bad timeout.
    """
    reference = weakref.ref(buffer)
    return Call(as_deadline(timeout), timeout, cancel_event, lambda: (b := reference()) is not None and b._closed)
