"""What bounds the waits of the calling thread."""

import threading

__all__ = ["NO_LIMITS", "Call", "Limits"]


class Call:
    """The limits of one public call; immutable, so that one store sets or lifts all of them."""

    __slots__ = ("cancel_event", "closed", "deadline", "timeout")

    def __init__(self, deadline: float | None, timeout: float | None, cancel_event, closed):
        self.deadline, self.timeout, self.cancel_event, self.closed = deadline, timeout, cancel_event, closed


NO_LIMITS = Call(None, None, None, lambda: False)


class Limits(threading.local):
    """Per thread: the present call's limits, set by the public call and read by the waits below it.

    ``call`` is set and put back by plain attribute stores, between which Python never looks for signals.
    """

    call = NO_LIMITS
    depth = 0  # writes of this thread under way; above 1 in a signal handler or finalizer
