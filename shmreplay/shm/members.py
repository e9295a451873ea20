"""Who is attached, and who is provably dead.

Each process holds an open-file-description lock on its own byte of ``members``; the kernel drops it when the last
descriptor of that description closes, so at death at the latest. A child forked without Python's knowledge keeps its
parent's description open: therefore, in the same pid namespace (and where /proc shows it), a missing pid, another
start time or a zombie whose threads are gone is dead too. ``F_OFD_GETLK`` asks without touching; it goes through a
description that this process opened itself, since a description never conflicts with itself.

A row is (incarnation, pid, start time, pid namespace), written under the lock by whoever owns the byte; before a row
gets a new incarnation, everything that the old one held is resolved under the same lock hold.
"""

import errno
import fcntl
import os
import struct

from ..errors import MembersFullError
from . import table
from .points import locked_point, point

_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_FLOCK = struct.Struct("hhqqi4x")


def _flock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def _try_lock(fd: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started; None if it is gone or a zombie without threads left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[19])


def _namespace() -> int:
    """Inode of this process's pid namespace; 0 if /proc shows another one, so that its pids say nothing here."""
    if os.readlink("/proc/self") != str(os.getpid()):
        return 0
    return os.stat("/proc/self/ns/pid").st_ino


def nobody_lives(path: str) -> int | None:
    """Lock the whole of a ``members`` file; its descriptor if no member lives, None otherwise."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if _try_lock(fd, 0, table.N_MEMBERS):
        return fd
    os.close(fd)
    return None


class Members:
    """This process's seat among the members of one segment.

    Mutable: ``fd``, ``row``/``inc`` and the pid namespace (local, set by ``sit``; ``leave`` and a fork clear the first three).
    """

    def __init__(self, path: str, words: memoryview):
        self._path = path
        self._words = words
        self._namespace = 0
        self.fd = -1
        self.row = -1
        self.inc = -1

    def sit(self) -> int:
        """Lock a byte that nobody holds; returns its row. The row's words are set later, by ``register``."""
        self.leave()  # what an interrupted attempt left
        self.fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        point("shmreplay.sitting")
        for row in range(table.N_MEMBERS):
            if _try_lock(self.fd, row, 1):
                return row
        blocker = _FLOCK.unpack(fcntl.fcntl(self.fd, _F_OFD_GETLK, _flock(fcntl.F_WRLCK, 0, table.N_MEMBERS)))
        self.leave()
        if blocker[3] == table.N_MEMBERS:  # one lock on all bytes: not members, but whoever frees
            raise FileNotFoundError(f"the replay buffer at {os.path.dirname(self._path)} is being freed")
        raise MembersFullError(
            f"{table.N_MEMBERS} processes are attached to {os.path.dirname(self._path)}, the most that one buffer "
            "holds. End some, or put an ensemble of several buffers in its place."
        )

    def register(self, held, row: int, inc: int) -> None:
        """Write who sits in ``row``; after all that its last owner held was resolved."""
        at = (table.MEMBERS >> 3) + 8 * row
        words = self._words
        words[at + table.M_INC] = 0
        words[at + table.M_PID] = os.getpid()
        words[at + table.M_START] = start_time(os.getpid()) or 0
        self._namespace = words[at + table.M_NAMESPACE] = _namespace()
        words[at + table.M_LEFT] = 0
        if locked_point:
            locked_point("shmreplay.locked.register.row")
        words[at + table.M_INC] = inc
        if locked_point:
            locked_point("shmreplay.locked.register.inc")
        self.row, self.inc = row, inc

    def live_count(self) -> int:
        """How many rows belong to living processes, this one included."""
        at, words = table.MEMBERS >> 3, self._words
        incs = words[at : at + 8 * table.N_MEMBERS : 8].tolist()
        return sum(1 for row, inc in enumerate(incs) if inc and not self.is_dead(row, inc))

    def is_dead(self, row: int, inc: int) -> bool:
        """Whether the owner (row, incarnation) is provably dead, or gone and resolved."""
        if row == self.row and inc == self.inc:
            return False
        words, at = self._words, (table.MEMBERS >> 3) + 8 * row
        if words[at + table.M_INC] != inc:
            return True
        answer = fcntl.fcntl(self.fd, _F_OFD_GETLK, _flock(fcntl.F_WRLCK, row, 1))
        if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return True
        if not self._namespace or words[at + table.M_NAMESPACE] != self._namespace:
            return False  # its pid means nothing here
        pid, started = words[at + table.M_PID], words[at + table.M_START]
        now = start_time(pid)
        return now is None or (started != 0 and now != started)

    def link_count(self) -> int:
        """0 once the segment was unlinked."""
        return os.fstat(self.fd).st_nlink

    def say_left(self) -> None:
        """Mark this process's row: it ended in order, which is no death to be counted."""
        if self.row >= 0:
            self._words[(table.MEMBERS >> 3) + 8 * self.row + table.M_LEFT] = self.inc

    def leave(self) -> None:
        """Close the description; the kernel drops its lock unless a forked child still has it."""
        fd, self.fd, self.row, self.inc = self.fd, -1, -1, -1
        if fd >= 0:
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: the seat is the parent's. Closing a copy leaves the parent's lock as it is."""
        self.leave()
