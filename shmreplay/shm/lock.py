"""The crash-robust lock of a segment, in two kinds.

A robust process-shared mutex (or the kernel's ``flock``) says *that* its holder died or let go; the operation word
beside it says *in what*. The protocol:

- A section is ``try: held = lock.acquire(); ...; finally: lock.here.unlock()``. The acquire stands inside the ``try``
  because SIGINT may land right after the C call; ``here.unlock`` is a C callable because Python looks for signals when
  a Python function begins, never before a C call. Unlocking what this thread does not own does nothing.
- Before its first change a section saves the scalar words (``begin``) and sets the operation word; it clears the
  word last. Whoever acquires and finds the word set - the holder died, or left by KeyboardInterrupt, by a raising
  signal handler, by MemoryError - restores the words and applies the recovery table before anything else.
- If the recoverer dies as well the word is still set and the saved words are untouched: the next one does it again.
- A thread that owns the lock must not wait for the GIL: the try-lock keeps the GIL, a busy lock is slept on without
  owning it. What runs inside keeps the GIL too (slices, scalars, small one-dimensional fancy indexing).

``PthreadLock``. Dies after trylock, before ``begin``: EOWNERDEAD with a clear word, nothing to do. Dies between
EOWNERDEAD and ``consistent``: EOWNERDEAD again. Interrupted there: the unlock calls ``consistent`` first.

``FlockLock``. A description for each thread, so that threads exclude each other as processes do. The kernel releases it
when the last descriptor closes: a forked child closes what it inherited at once, but a child forked behind Python's
back keeps a dead parent's lock until it executes something else.
"""

import ctypes
import errno
import operator
import os
import random
import sys
import threading
import time
import weakref
from functools import partial

from ..errors import CorruptError, SampleTimeoutError, ShmReplayError
from . import libc, table
from .limits import Limits
from .points import locked_point

_SECTIONS = set()  # code objects that hold a lock while they run
_OP = table.OP >> 3
_WORDS = table.WORDS >> 3
_UNDO = table.UNDO >> 3
_GRACE = 1.0  # seconds beyond its deadline that a call waits to clean up after itself


def section(function):
    """Register ``function`` as one that holds a lock while its frame lives."""
    _SECTIONS.add(function.__code__)
    return function


class Held:
    """Proof that the lock is held; only a lock makes one. Locked steps take it as an argument."""

    __slots__ = ()


class Here(threading.local):
    """What belongs to the calling thread: how it unlocks."""

    def __init__(self, make_unlock):
        self.unlock = make_unlock(self)


class Lock:
    """What both kinds share: the operation word, the saved words, waiting for a busy lock.

    Mutable: the operation word and the saved words (shared; under the lock), ``recover`` (local, set once by the owner
    of the words that it repairs), ``here`` (per thread; anew in a forked child).
    """

    def __init__(self, words: memoryview, limits: Limits):
        self._words = words
        self._limits = limits
        self._held = Held()
        self.recover = None
        self.here = Here(self._make_unlock)

    def _make_unlock(self, here: Here):
        raise NotImplementedError

    def create(self) -> None:
        """Initialise the lock's bytes; before anybody else can see them."""

    def forked(self) -> None:
        """In a forked child: what threads held in-process is the parent's."""
        self.here = Here(self._make_unlock)

    def begin(self, held: Held, op: int, argument: int, ledger_words: int = 0) -> None:
        """Save the scalar words, then say which operation starts. ``ledger_words``: byte offset, 0 for none."""
        words = self._words
        words[_UNDO : _UNDO + table.N_WORDS] = words[_WORDS : _WORDS + table.N_WORDS]
        if ledger_words:
            start = ledger_words >> 3
            words[_UNDO + table.N_WORDS : _UNDO + 2 * table.N_WORDS] = words[start : start + table.N_WORDS]
        words[_OP + 2] = ledger_words
        words[_OP + 1] = argument
        if locked_point:
            locked_point("shmreplay.locked.saved")
        words[_OP] = op
        if locked_point:
            locked_point("shmreplay.locked.begun")

    def finish(self, held: Held) -> None:
        """The operation is whole."""
        if locked_point:
            locked_point("shmreplay.locked.finishing")
        self._words[_OP] = 0

    def pending(self, held: Held) -> tuple[int, int]:
        """The operation that a holder left, and its argument; restores the words it saved."""
        words = self._words
        words[_WORDS : _WORDS + table.N_WORDS] = words[_UNDO : _UNDO + table.N_WORDS]
        ledger_words = words[_OP + 2]
        if ledger_words:
            start = ledger_words >> 3
            words[start : start + table.N_WORDS] = words[_UNDO + table.N_WORDS : _UNDO + 2 * table.N_WORDS]
        return words[_OP], words[_OP + 1]

    def _pause(self, pause: float, must: bool) -> float:
        """Sleep without owning; the first rounds are short, as holds are. ``must``: a clean-up, with some grace."""
        deadline = self._limits.call.deadline
        if deadline is not None and time.monotonic() > deadline + (_GRACE if must else 0.0):
            raise SampleTimeoutError(
                "the lock of the replay buffer was not free before the deadline: its holder lives but does not run "
                "(stopped with SIGSTOP?). Continue that process, or end it."
            )
        time.sleep(pause * (0.5 + random.random()))
        return min(0.001, pause * 2 or 0.00001)

    def _is_free(self) -> bool:
        """Whether nobody owns the lock; asked when the frame of a section may have unlocked already."""
        raise NotImplementedError

    def _check_not_inside(self, depth: int) -> None:
        """Raise if the section that asks, ``depth`` frames up, was called from inside another one of this thread."""
        frame = sys._getframe(depth)
        while frame is not None:
            frame = frame.f_back
            if frame is not None and frame.f_code in _SECTIONS and not self._is_free():
                here = self.here  # the refused section's unlock must not unlock for the outer one
                here.unlock = partial(setattr, here, "unlock", here.unlock)
                raise ShmReplayError(
                    "a replay buffer was called from a signal handler or finalizer while the same thread was inside "
                    "its lock; set a flag there and call the buffer from the main code"
                )


class PthreadLock(Lock):
    """A normal, robust, process-shared pthread mutex. Its owner is a thread id: one pid namespace only."""

    def __init__(self, words: memoryview, address: int, folder: str | None, limits: Limits):
        self._mutex = ctypes.c_void_p(address + table.LOCK)
        self._owner = ctypes.c_int.from_address(address + table.LOCK)
        super().__init__(words, limits)

    def _make_unlock(self, here: Here):
        # Two C calls in one: Python does not look for signals inside ``max``. The first does nothing unless this thread
        # was cut short between EOWNERDEAD and ``consistent``; an unlock in that state would spoil the mutex for good.
        calls = partial(libc.mutex_consistent, self._mutex), partial(libc.mutex_unlock, self._mutex)
        return partial(max, calls, key=operator.call)

    def _is_free(self) -> bool:
        return self._owner.value & 0x3FFFFFFF != threading.get_native_id()

    def create(self) -> None:
        libc.mutex_init(self._mutex.value)

    def acquire(self, must: bool = False) -> Held:
        """Own the lock; inside a ``try`` whose ``finally`` is ``lock.here.unlock()``.

        ``must`` says that this is a commit or a clean-up: it waits on for a second when the deadline has passed.

        Raises:
            SampleTimeoutError: the calling thread's deadline passed while a live (say, stopped) process held it.
            ShmReplayError: a signal handler or finalizer called in while this thread was inside the lock.
        """
        code = libc.mutex_trylock(self._mutex)
        if code:
            self._acquire_slowly(code, must)
        if locked_point:
            locked_point("shmreplay.locked.acquired")
        if self._words[_OP]:
            self.recover(self._held)
        return self._held

    def _acquire_slowly(self, code: int, must: bool) -> None:
        pause = 0.0
        while code:
            if code == errno.EOWNERDEAD:
                if locked_point:
                    locked_point("shmreplay.locked.ownerdead")
                libc.mutex_consistent(self._mutex)
                return
            if code != errno.EBUSY:
                raise CorruptError(f"the lock answered {code} ({os.strerror(code)}): the segment is damaged")
            elif self._owner.value & 0x3FFFFFFF == threading.get_native_id():
                self._check_not_inside(3)
                return  # left by an interruption: this thread owns it still
            else:
                pause = self._pause(pause, must)
            code = libc.mutex_trylock(self._mutex)


class _Descriptor:
    """An open description of the lock file, closed with its thread."""

    fd = -1  # until it is open

    def __init__(self, path: str):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class FlockLock(Lock):
    """``flock`` on a kept description for each thread; works across pid namespaces. A try loop when busy."""

    def __init__(self, words: memoryview, address: int, folder: str | None, limits: Limits):
        self._path = os.path.join(folder, "lock")
        self._descriptors = weakref.WeakSet()
        super().__init__(words, limits)

    def _make_unlock(self, here: Here):
        here.descriptor = _Descriptor(self._path)
        self._descriptors.add(here.descriptor)
        return partial(libc.flock, here.descriptor.fd, libc.LOCK_UN)

    def forked(self) -> None:
        for descriptor in list(self._descriptors):
            descriptor.close()
        self._descriptors = weakref.WeakSet()
        super().forked()

    def acquire(self, must: bool = False) -> Held:
        """Own the lock; see ``PthreadLock.acquire``."""
        here, words = self.here, self._words
        fd = here.descriptor.fd
        self._check_not_inside(2)  # flock lets a thread in twice
        pause = 0.0
        while libc.flock(fd, libc.LOCK_EX | libc.LOCK_NB):
            code = ctypes.get_errno()
            if code not in (errno.EWOULDBLOCK, errno.EINTR):
                raise OSError(code, f"flock({self._path}): {os.strerror(code)}")
            pause = self._pause(pause, must)
        if locked_point:
            locked_point("shmreplay.locked.acquired")
        if words[_OP]:
            self.recover(self._held)
        return self._held


    def _is_free(self) -> bool:
        """Whether no description holds the lock: asked through one of its own."""
        other = _Descriptor(self._path)
        self._descriptors.add(other)  # so that a child forked now closes it
        try:
            return libc.flock(other.fd, libc.LOCK_EX | libc.LOCK_NB) == 0
        finally:
            libc.flock(other.fd, libc.LOCK_UN)
            other.close()


KINDS = {"pthread": PthreadLock, "flock": FlockLock}
