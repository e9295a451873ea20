"""Segments: a directory of mapped files, or the same bytes in private memory.

``<root>/shmreplay-<uid>/<id>/`` holds ``control`` (the table of ``table.py``), ``members``, and what upper layers add.
``<root>`` is /dev/shm or what SHMREPLAY_DIR names. Creation and sweep exclude each other with a file lock beside the
segments; attach does not need it: it locks its member byte first and then looks whether the segment was freed, while
whoever frees locks all member bytes first, then marks, then unlinks. Nothing is ever truncated.

Mutable: ``row`` and ``inc`` (local; this process's seat, taken at first use, dropped in a forked child).
"""

import atexit
import json
import mmap
import multiprocessing
import multiprocessing.util
import os
import shutil
import threading
import uuid
import weakref

import numpy as np

from ..errors import ForkError, VersionError
from . import space, table
from .event import KINDS as EVENTS
from .folders import boot_id, file_lock, folder, read_marker
from .freeing import leave, sweep_locked
from .limits import NO_LIMITS, Limits
from .lock import KINDS as LOCKS
from .lock import section
from .members import Members
from .points import locked_point, point

DEFAULT_KINDS = ("pthread", "futex")
_WHAT = "the control file of a buffer"

_live: "weakref.WeakSet[Segment]" = weakref.WeakSet()
_attached: "weakref.WeakValueDictionary[str, Segment]" = weakref.WeakValueDictionary()


def pid_namespace() -> int:
    """Inode of this process's pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def chosen_kinds(lock: str | None, event: str | None) -> tuple[str, str]:
    """The kinds of lock and event: as asked, else as SHMREPLAY_LOCK and SHMREPLAY_EVENT say, else the fast ones.

    Raises:
        ValueError: there is no such kind.
    """
    chosen = []
    for name, asked, known in (("lock", lock, LOCKS), ("event", event, EVENTS)):
        kind = asked or os.environ.get(f"SHMREPLAY_{name.upper()}") or next(iter(known))
        if kind not in known:
            raise ValueError(f"{name}={kind!r}: there is {' and '.join(map(repr, known))}")
        chosen.append(kind)
    return chosen[0], chosen[1]


def map_file(path: str, nbytes: int) -> np.ndarray:
    """Map ``nbytes`` of the file at ``path``, shared and writable; uint8."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    finally:
        os.close(fd)


def map_private(nbytes: int) -> np.ndarray:
    """Map ``nbytes`` of zeroed private memory that costs nothing until touched; uint8."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes), flags=flags), np.uint8)


class Segment:
    """The mapped control bytes of one buffer's storage, its lock and its members."""

    def __init__(self, control: np.ndarray, capacity: int, path: str | None, kinds: tuple[str, str] = DEFAULT_KINDS):
        self.capacity = capacity
        self.path = path
        self.control = control
        self.words = memoryview(control).cast("q")
        self.address = control.ctypes.data
        at = table.stamps_offset(capacity)
        self.stamps = control[at : at + table.STAMP_NBYTES * capacity].view(np.int64).reshape(capacity, 4)
        self.stamps32 = self.stamps.view(np.int32)
        self.kinds = kinds
        self.limits = Limits()
        self.lock = LOCKS[kinds[0]](self.words, self.address, path, self.limits)
        self.event = EVENTS[kinds[1]]
        self.members = Members(os.path.join(path, "members"), self.words) if path else None
        self.row, self.inc = -1, -1
        self._make_local_locks()
        self.resolve_owner = None  # set by the state layer: (held, row, inc) -> None
        self.exclusive = path is None  # unshared: no forked child may use it
        self.in_child = False
        _live.add(self)

    @classmethod
    def private(cls, capacity: int) -> "Segment":
        """The same bytes in memory that only this process sees."""
        segment = cls(map_private(table.control_nbytes(capacity)), capacity, None)
        segment._write_header()
        segment.lock.create()
        segment.row, segment.inc = 0, 1
        segment.words[table.W_NEXT_INC + (table.WORDS >> 3)] = 1
        return segment

    @classmethod
    def create(cls, capacity: int, config: dict, kinds: tuple[str, str]) -> "Segment":
        """A new directory; sweeps what the dead left first. ``config`` is kept as JSON beside the control file.

        ``kinds`` names the lock and the event, the same for every process.

        Raises:
            SpaceError: no room for the fixed part.
        """
        home = folder()
        os.makedirs(os.path.dirname(home), exist_ok=True)
        with space.explained(os.path.dirname(home), table.LEDGERS + table.LEDGER_NBYTES, _WHAT):
            os.makedirs(home, mode=0o700, exist_ok=True)
            with file_lock(os.path.join(home, ".lock")):
                sweep_locked(home)
                segment = cls._create_folder(os.path.join(home, uuid.uuid4().hex[:16]), capacity, config, kinds)
        point("shmreplay.created")
        return segment

    @classmethod
    def _create_folder(cls, path: str, capacity: int, config: dict, kinds: tuple[str, str]) -> "Segment":
        os.mkdir(path, 0o700)
        point("shmreplay.create.folder")
        try:
            return cls._create_files(path, capacity, config, kinds)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    @classmethod
    def _create_files(cls, path: str, capacity: int, config: dict, kinds: tuple[str, str]) -> "Segment":
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(config | {"capacity": capacity, "lock": kinds[0], "event": kinds[1]}, file)
        point("shmreplay.create.config")
        control = os.path.join(path, "control")
        for name in (control, os.path.join(path, "members")):
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        point("shmreplay.create.files")
        os.truncate(control, table.control_nbytes(capacity))
        space.claim(control, [(0, table.LEDGERS + table.LEDGER_NBYTES)], _WHAT, memory=True)
        point("shmreplay.create.claimed")
        segment = cls(map_file(control, table.control_nbytes(capacity)), capacity, path, kinds)
        try:
            segment._write_header()
            segment.lock.create()
            point("shmreplay.create.header")
            segment._take_seat()
            segment._own()
            return segment
        except BaseException:
            segment.members.leave()
            raise

    @classmethod
    def attach(cls, path: str) -> "Segment":
        """The segment at ``path``; one object a process.

        Raises:
            FileNotFoundError: it does not exist or was freed.
            VersionError: of another format, boot or pid namespace.
        """
        path = os.path.realpath(path)
        marker = read_marker(path)
        if marker is not None and marker["segment"] is not None:
            path = os.path.realpath(marker["segment"])
        segment = _attached.get(path)
        if segment is not None:
            return segment
        try:
            with open(os.path.join(path, "config.json")) as file:
                config = json.load(file)
            size = os.path.getsize(os.path.join(path, "control"))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"no replay buffer at {path}: it was freed when its last process ended, or never existed"
            ) from None
        head = np.fromfile(os.path.join(path, "control"), np.int64, 32)
        capacity, kinds = config["capacity"], (config["lock"], config["event"])
        _check_header(head, path, capacity, size, kinds)
        segment = cls(map_file(os.path.join(path, "control"), size), capacity, path, kinds)
        segment._own()
        return segment

    def _own(self) -> None:
        _attached[self.path] = self
        weakref.finalize(self, leave, self.members, self.path)

    def leave(self) -> None:
        """Give up this process's seat for good; the last one out frees the segment."""
        leave(self.members, self.path)

    def config(self) -> dict:
        """What was given at creation."""
        with open(os.path.join(self.path, "config.json")) as file:
            return json.load(file)

    def seat(self) -> int:
        """This process's member row; taken at first use.

        Raises:
            ForkError: an unshared buffer in a forked child.
        """
        if self.row < 0:
            if self.exclusive:
                raise ForkError(
                    "this replay buffer is not shared and cannot be used in a forked child: its copy here would "
                    "drift apart from the parent's. Call share() before the fork."
                )
            with self._seat_lock:  # two threads must not take two seats, nor one twice
                if self.row < 0 and self.members.row >= 0:  # interrupted before it was noted here
                    self.inc, self.row = self.members.inc, self.members.row
                elif self.row < 0:
                    self._take_seat()
        return self.row

    def _make_local_locks(self) -> None:
        self.counter_lock, self.layout_lock, self._seat_lock = (threading.RLock() for _ in range(3))

    def _take_seat(self) -> None:
        _check_namespace(self.words[table.H_PIDNS], self.path, self.kinds)  # a fork may lead into another one
        try:
            row = self.members.sit()
            point("shmreplay.sit")
            self._register(row)
        except BaseException:
            self.members.leave()
            raise
        self.inc, self.row = self.members.inc, row
        _leave_at_end_of_child()
        point("shmreplay.seated")

    @section
    def _register(self, row: int) -> None:
        words, lock = self.words, self.lock
        try:
            held = lock.acquire()
            if words[table.H_FREED] or self.members.link_count() == 0:
                raise FileNotFoundError(f"the replay buffer at {self.path} was freed")
            old = words[(table.MEMBERS >> 3) + 8 * row + table.M_INC]
            if old and self.resolve_owner is not None:
                self.resolve_owner(held, row, old)
            inc = words[(table.WORDS >> 3) + table.W_NEXT_INC] + 1
            words[(table.WORDS >> 3) + table.W_NEXT_INC] = inc
            if locked_point:
                locked_point("shmreplay.locked.register.number")
            self.members.register(held, row, inc)
        finally:
            lock.here.unlock()

    def _write_header(self) -> None:
        words = self.words
        words[table.H_VERSION] = table.FORMAT_VERSION
        words[table.H_CAPACITY] = self.capacity
        words[table.H_PIDNS] = pid_namespace()
        words[table.H_BOOT_ID] = boot_id()
        words[table.H_CREATOR] = os.getpid()
        words[(table.WORDS >> 3) + table.W_EPOCH] = 1
        words[table.H_MAGIC] = table.MAGIC

    def forked(self) -> None:
        """In a forked child: the seat is the parent's, in-process locks may be held by threads that are not here."""
        self.row, self.inc = -1, -1
        self.in_child = True
        self._make_local_locks()
        self.limits.call, self.limits.depth = NO_LIMITS, 0
        if self.members is not None:
            self.members.forget()
        self.lock.forked()


def _check_header(head: np.ndarray, path: str, capacity: int, size: int, kinds: tuple[str, str]) -> None:
    if head.size < 32 or head[table.H_MAGIC] != table.MAGIC:
        raise VersionError(f"{path} is not a replay buffer")
    version = int(head[table.H_VERSION])
    if version != table.FORMAT_VERSION:
        raise VersionError(
            f"{path} has format version {version}, this library reads {table.FORMAT_VERSION}: use the version of "
            "shmreplay that made it"
        )
    if head[table.H_CAPACITY] != capacity or size != table.control_nbytes(capacity):
        raise VersionError(f"{path}: its control file does not fit its config ({size} bytes, capacity {capacity})")
    if head[table.H_BOOT_ID] != boot_id():
        raise VersionError(f"{path} was left by an earlier boot of the machine: load a checkpoint instead")
    _check_namespace(head[table.H_PIDNS], path, kinds)


def _check_namespace(namespace: int, path: str, kinds: tuple[str, str]) -> None:
    if namespace != pid_namespace() and kinds[0] == "pthread":
        raise VersionError(
            f"{path} belongs to another pid namespace, and its lock names threads by their ids there: make the storage "
            'with lock="flock" (or SHMREPLAY_LOCK=flock), or run both in one pid namespace (docker: --pid=host)'
        )


def _after_fork_in_child() -> None:
    for segment in list(_live):
        segment.forked()


def _leave_all() -> None:
    for segment in list(_live):
        if segment.path is not None:
            segment.leave()


def _leave_at_end_of_child() -> None:
    """Children that multiprocessing forks end without ``atexit``, but with its own finalizers; once a process."""
    global _registered_by
    if _registered_by != os.getpid() and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _leave_all, exitpriority=0)
        _registered_by = os.getpid()


_registered_by = 0
os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_leave_all)
