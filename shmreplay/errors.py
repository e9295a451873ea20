"""The exceptions of shmreplay: each is also the builtin that TorchRL raises.

All of them pickle: a worker's error arrives in the parent as what it was.
"""

__all__ = [
    "BudgetError",
    "ClosedError",
    "CorruptError",
    "ForkError",
    "LayoutError",
    "LayoutKeyError",
    "LayoutTypeError",
    "MembersFullError",
    "SampleTimeoutError",
    "ShmReplayError",
    "SpaceError",
    "VersionError",
]


class ShmReplayError(Exception):
    """Base of every error that the library raises on its own account."""


class LayoutError(ShmReplayError, ValueError):
    """Data whose shape, dtype or length does not fit the layout of the records."""


class LayoutKeyError(ShmReplayError, KeyError):
    """Data with a missing or an extra key."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LayoutTypeError(ShmReplayError, TypeError):
    """Data of a kind that cannot be stored."""


class SpaceError(ShmReplayError, OSError):
    """Not enough room in shared memory or on the disk."""


class BudgetError(ShmReplayError, RuntimeError):
    """A sample that neither the data nor the sample budget permits now."""


class SampleTimeoutError(ShmReplayError, TimeoutError):
    """A wait that reached its deadline."""


class ClosedError(ShmReplayError, RuntimeError):
    """A call on a buffer that was shut down, or a wait that was cancelled."""


class ForkError(ShmReplayError, RuntimeError):
    """An unshared buffer used in a forked child."""


class MembersFullError(ShmReplayError, RuntimeError):
    """More processes, ledgers or open writes than the segment has rows for."""


class VersionError(ShmReplayError, RuntimeError):
    """A segment of another format version, boot or pid namespace."""


class CorruptError(ShmReplayError, RuntimeError):
    """An invariant of the shared state does not hold."""
