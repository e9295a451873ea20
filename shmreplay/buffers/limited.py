"""What bounds the waits below a public call."""

import weakref

from ..checks import as_deadline

__all__ = ["Limited"]


class Limited:
    """Bounds the waits of the calling thread for the length of a call."""

    __slots__ = ("_limits", "_lock", "_values", "_before")

    def __init__(self, buffer, timeout, cancel_event):
        deadline = as_deadline(timeout)
        self._limits, self._lock = buffer._ring.limits, buffer._segment.lock
        reference = weakref.ref(buffer)
        self._values = (deadline, timeout, cancel_event, lambda: (b := reference()) is not None and b._closed)

    def __enter__(self) -> None:
        limits = self._limits
        self._before = (limits.deadline, limits.timeout, limits.cancel_event, limits.closed)
        self._set(self._values)

    def __exit__(self, *_) -> None:
        self._set(self._before)

    def _set(self, values) -> None:
        limits = self._limits
        limits.deadline, limits.timeout, limits.cancel_event, limits.closed = values
        self._lock.here.deadline = values[0]
