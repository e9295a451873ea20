"""Claiming space before it is touched, so that a full file system is an error and never SIGBUS."""

import errno
import os
from contextlib import contextmanager

from ..errors import SpaceError
from . import libc

_REMEDIES = (
    "Free some room, give the machine or container more (docker: --shm-size), choose a smaller max_size, point "
    "SHMREPLAY_DIR at a larger tmpfs, or use LazyMemmapStorage(scratch_dir=...) on a disk."
)
_MEMINFO, _OWN_CGROUPS, _CGROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"
_CGROUP_FILES = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def _message(path: str, need: int, room: int, what: str) -> str:
    return f"no space for {what}: {need:,} bytes needed, {room:,} bytes available at {path}. {_REMEDIES}"


def room_at(path: str) -> int:
    """Bytes that may still be claimed on the file system of ``path``."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def free_memory() -> int | None:
    """Bytes that this process may still take from memory: the machine's and its cgroups'; None if unknown."""
    limits = []
    try:
        with open(_MEMINFO) as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    limits.append(int(line.split()[1]) * 1024)
                    break
    except OSError:
        pass
    for place in _cgroup_folders():
        for limit, used, cache in _CGROUP_FILES:
            room = _cgroup_room(place, limit, used, cache)
            if room is not None:
                limits.append(room)
    return max(0, min(limits)) if limits else None


def _cgroup_folders() -> list[str]:
    """The folders of this process's cgroup and of those around it, as far as they can be seen here."""
    found = [_CGROUPS, os.path.join(_CGROUPS, "memory")]
    try:
        with open(_OWN_CGROUPS) as file:
            for line in file:
                _, controllers, inner = line.strip().split(":", 2)
                if controllers in ("", "memory"):
                    place = found[bool(controllers)]
                    for name in filter(None, inner.split("/")):
                        place = os.path.join(place, name)
                        found.append(place)
    except (OSError, ValueError):
        pass
    return found


def _cgroup_room(place: str, limit: str, used: str, cache: tuple[str, str]) -> int | None:
    """What a cgroup may still take; its file cache counts as free, since it gives way."""
    try:
        with open(os.path.join(place, limit)) as file:
            most = int(file.read())
        with open(os.path.join(place, used)) as file:
            taken = int(file.read())
        with open(os.path.join(place, "memory.stat")) as file:
            lines = dict(line.split(None, 1) for line in file)
    except (OSError, ValueError):  # no limit reads "max"
        return None
    return most - taken + sum(int(lines.get(name, 0)) for name in cache)


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


@contextmanager
def explained(path: str, need: int, what: str):
    """Around writing small files: a full file system at ``path`` is a SpaceError here too."""
    try:
        yield
    except SpaceError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SpaceError(error.errno, _message(path, need, room_at(path), what)) from None


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
