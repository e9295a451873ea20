"""Claiming space before it is touched, so that a full file system is an error and never SIGBUS."""

import errno
import os

from ..errors import SpaceError
from . import libc

_REMEDIES = (
    "Free some room, give the machine or container more (docker: --shm-size), choose a smaller max_size, point "
    "SHMREPLAY_DIR at a larger tmpfs, or use LazyMemmapStorage(scratch_dir=...) on a disk."
)


def _message(path: str, need: int, room: int, what: str) -> str:
    return f"no space for {what}: {need:,} bytes needed, {room:,} bytes available at {path}. {_REMEDIES}"


def room_at(path: str) -> int:
    """Bytes that may still be claimed on the file system of ``path``."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def free_memory() -> int | None:
    """Bytes that this process may still take from memory: the machine's and its cgroup's; None if unknown."""
    limits = []
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    limits.append(int(line.split()[1]) * 1024)
                    break
    except OSError:
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as current:
            text = limit.read().strip()
            if text != "max":
                limits.append(int(text) - int(current.read()))
    except (OSError, ValueError):
        pass
    return max(0, min(limits)) if limits else None


def check_room(path: str, need: int, what: str, *, memory: bool) -> None:
    """Raise unless ``need`` bytes fit at ``path``.

    Raises:
        SpaceError: naming need, room and remedies.
    """
    room = room_at(path)
    if memory:
        free = free_memory()
        room = room if free is None else min(room, free)
    if need > room:
        raise SpaceError(errno.ENOSPC, _message(path, need, room, what))


def check_memory(path: str, need: int, what: str) -> None:
    """Raise SpaceError unless ``need`` bytes of memory are free."""
    free = free_memory()
    if free is not None and need > free:
        raise SpaceError(errno.ENOMEM, _message(path, need, free, what))


def claim(path: str, ranges: list[tuple[int, int]], what: str, *, memory: bool) -> None:
    """Claim byte ranges (offset, length) of the file at ``path``; claiming twice is harmless.

    Raises:
        SpaceError: the file system is full or cannot claim; nothing that was there is lost.
    """
    need = sum(length for _, length in ranges)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if memory:
            check_memory(path, need, what)
        for offset, length in ranges:
            if length > 0:
                libc.fallocate(fd, offset, length)
    except OSError as error:
        if isinstance(error, SpaceError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SpaceError(error.errno, _message(path, need, room_at(path), what)) from None
        raise SpaceError(
            error.errno, f"cannot claim space at {path}: {error.strerror}. Choose a file system with fallocate."
        ) from None
    finally:
        os.close(fd)
