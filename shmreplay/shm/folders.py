"""Where segments and temporary records lie, and what is kept beside the records of a folder that the user named.

``shmreplay.json`` (the marker) says which segment a folder's counters are in, or that its ``control`` file was saved
there. Whoever changes a marker owns the folder's lock file, or holds every member byte of the segment that it names.
"""

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager

import numpy as np

from . import table

_locked: set[int] = set()  # descriptors of lock files that threads of this process hold or wait for


def folder() -> str:
    """The folder of this user's segments."""
    root = os.environ.get("SHMREPLAY_DIR") or "/dev/shm"
    return os.path.join(root, f"shmreplay-{os.getuid()}")


def own_scratch() -> str:
    """The folder of this user's temporary record files; swept like the segments."""
    return os.path.join(tempfile.gettempdir(), f"shmreplay-{os.getuid()}")


def boot_id() -> int:
    """This boot's id, as 63 bits."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return int(file.read().replace("-", "")[:15], 16)


@contextmanager
def file_lock(path: str):
    """Own the lock file at ``path``. A process forked meanwhile lets go at once, else it would keep a dead parent's."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _locked.add(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        if fd in _locked:
            _locked.discard(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _after_fork_in_child() -> None:
    while _locked:
        os.close(_locked.pop())


os.register_at_fork(after_in_child=_after_fork_in_child)


def write_marker(records: str, segment: str | None) -> None:
    """Say beside the records of a user's folder where their segment is; None once its control file was saved."""
    if not os.path.isdir(records):
        return
    partial = os.path.join(records, "shmreplay.partial")
    with open(partial, "w") as file:
        json.dump({"segment": segment, "boot_id": boot_id()}, file)
    os.replace(partial, os.path.join(records, "shmreplay.json"))


def read_marker(records: str) -> dict | None:
    """What ``write_marker`` wrote; None if the folder was never used."""
    try:
        with open(os.path.join(records, "shmreplay.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def is_marked(records: str, segment: str) -> bool:
    """Whether the marker in ``records`` names ``segment``."""
    marker = read_marker(records)
    named = marker and marker["segment"]
    return bool(named) and os.path.realpath(named) == os.path.realpath(segment)


def save_control(control: str, records: str) -> None:
    """Copy the control file beside the records of a folder that the user named, atomically."""
    if not os.path.isdir(records):
        return
    size = os.path.getsize(control)
    head = np.fromfile(control, np.int64, table.FIXED_NBYTES >> 3)
    capacity = int(head[table.H_CAPACITY])
    at = table.stamps_offset(capacity)
    stamps_nbytes = table.STAMP_NBYTES * int(head[(table.WORDS >> 3) + table.W_CLAIMED])
    partial = os.path.join(records, "control.partial")
    with open(control, "rb") as source, open(partial, "wb") as target:
        for start, length in ((0, table.FIXED_NBYTES), (at, stamps_nbytes)):
            source.seek(start)
            target.seek(start)
            while length > 0:
                block = source.read(min(length, 1 << 20))
                if not block:
                    break
                target.write(block)
                length -= len(block)
        target.truncate(size)
        target.flush()
        os.fsync(target.fileno())
    os.replace(partial, os.path.join(records, "control"))


def remove_of_other_boots(scratch: str) -> None:
    """Remove temporary record folders whose segments were lost with an earlier boot."""
    if not os.path.isdir(scratch):
        return
    now = boot_id()
    for name in os.listdir(scratch):
        path = os.path.join(scratch, name)
        try:
            marker = read_marker(path)
        except (OSError, ValueError):
            continue
        if marker is not None and marker["boot_id"] != now:
            shutil.rmtree(path, ignore_errors=True)
