"""The crash-robust lock of a segment.

A robust process-shared mutex says *that* its holder died; the operation word beside it says *in what*. The protocol:

- A section is ``try: held = lock.acquire(); ...; finally: unlock(mutex)``. The acquire stands inside the ``try``
  because SIGINT may land right after the C call; the unlock is a bare C call because Python looks for signals when a
  Python function begins, never before a C call. Unlocking what this thread does not own is EPERM, nothing else.
- Before its first change a section saves the scalar words (``begin``) and sets the operation word; it clears the
  word last. Whoever acquires and finds the word set - the holder died, or left by KeyboardInterrupt, by a raising
  signal handler, by MemoryError - restores the words and applies the recovery table before anything else.
- If the recoverer dies as well the word is still set and the saved words are untouched: the next one does it again.
- A thread that owns the mutex must not wait for the GIL: the try-lock keeps the GIL, a busy lock is slept on without
  owning it. What runs inside keeps the GIL too (slices, scalars, small one-dimensional fancy indexing).

Dies after trylock, before ``begin``: EOWNERDEAD with a clear word, nothing to do. Dies between EOWNERDEAD and
``consistent``: EOWNERDEAD again. Interrupted there: the unlock makes the mutex unrecoverable, and the next caller
makes it anew under a file lock (nobody can own it in that state).
"""

import ctypes
import errno
import os
import random
import sys
import threading
import time

from filelock import FileLock

from ..errors import CorruptError, SampleTimeoutError, ShmReplayError
from . import libc, table

unlock = libc.mutex_unlock

_SECTIONS = set()  # code objects that hold the lock while they run


def section(function):
    """Register ``function`` as one that holds a lock while its frame lives."""
    _SECTIONS.add(function.__code__)
    return function


class Held:
    """Proof that the lock is held; only a lock makes one. Locked steps take it as an argument."""

    __slots__ = ()


class _NotMine:
    """Stands in for the mutex in the ``finally`` of a section that was refused because its thread is inside already."""

    def __init__(self, lock: "RobustLock"):
        self._lock, self._mutex, self._thread = lock, lock.mutex, threading.get_native_id()
        self._unowned = ctypes.create_string_buffer(64)
        libc.mutex_init(ctypes.addressof(self._unowned))

    @property
    def _as_parameter_(self):
        if threading.get_native_id() != self._thread:
            return self._mutex
        self._lock.mutex = self._mutex
        return ctypes.c_void_p(ctypes.addressof(self._unowned))


class RobustLock:
    """A mutex in shared memory that survives the death of its holder.

    Mutable: the mutex and the operation word (shared; under the mutex), ``recover`` (local, set once by the owner of
    the words that it repairs). Nothing else changes after construction.
    """

    def __init__(self, words: memoryview, address: int, repair_path: str | None):
        self._words = words
        self.mutex = ctypes.c_void_p(address + table.LOCK)
        self._owner = ctypes.c_int.from_address(address + table.LOCK)
        self._repair_path = repair_path
        self._held = Held()
        self.recover = None
        self.deadlines = threading.local()

    def create(self) -> None:
        """Initialise the mutex; before anybody else can see it."""
        libc.mutex_init(self.mutex.value)

    def acquire(self) -> Held:
        """Own the lock; inside a ``try`` whose ``finally`` is ``unlock(lock.mutex)``.

        Raises:
            SampleTimeoutError: the calling thread's deadline passed while a live (say, stopped) process held it.
            ShmReplayError: a signal handler or finalizer called in while this thread was inside the lock.
        """
        code = libc.mutex_trylock(self.mutex)
        if code:
            self._acquire_slowly(code)
        if self._words[_OP]:
            self.recover(self._held)
        return self._held

    def begin(self, held: Held, op: int, argument: int, ledger_words: int = 0) -> None:
        """Save the scalar words, then say which operation starts. ``ledger_words``: byte offset, 0 for none."""
        words = self._words
        words[_UNDO : _UNDO + table.N_WORDS] = words[_WORDS : _WORDS + table.N_WORDS]
        if ledger_words:
            start = ledger_words >> 3
            words[_UNDO + table.N_WORDS : _UNDO + 2 * table.N_WORDS] = words[start : start + table.N_WORDS]
        words[_OP + 2] = ledger_words
        words[_OP + 1] = argument
        words[_OP] = op

    def finish(self, held: Held) -> None:
        """The operation is whole."""
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

    def _acquire_slowly(self, code: int) -> None:
        pause = 0.0
        while True:
            if code == 0:
                return
            if code == errno.EOWNERDEAD:
                libc.mutex_consistent(self.mutex)
                return
            if code == errno.ENOTRECOVERABLE:
                self._make_anew()
            elif code != errno.EBUSY:
                raise CorruptError(f"the lock answered {code} ({os.strerror(code)}): the segment is damaged")
            elif self._owner.value & 0x3FFFFFFF == threading.get_native_id():
                self._check_not_inside()
                return  # left by an interruption: this thread owns it still
            else:
                pause = self._pause(pause)
            code = libc.mutex_trylock(self.mutex)

    def _pause(self, pause: float) -> float:
        """Sleep without owning; the first rounds are short, as holds are."""
        deadline = getattr(self.deadlines, "at", None)
        if deadline is not None and time.monotonic() > deadline:
            raise SampleTimeoutError(
                "the lock of the replay buffer was not free before the deadline: its holder lives but does not run "
                "(stopped with SIGSTOP?). Continue that process, or end it."
            )
        time.sleep(pause * (0.5 + random.random()))
        return min(0.001, pause * 2 or 0.00001)

    def _check_not_inside(self) -> None:
        frame = sys._getframe(3)  # the section that asks
        while frame is not None:
            frame = frame.f_back
            if frame is not None and frame.f_code in _SECTIONS:
                self.mutex = _NotMine(self)
                raise ShmReplayError(
                    "a replay buffer was called from a signal handler or finalizer while the same thread was inside "
                    "its lock; set a flag there and call the buffer from the main code"
                )

    def _make_anew(self) -> None:
        if self._repair_path is None:
            libc.mutex_init(self.mutex.value)
            return
        with FileLock(self._repair_path):
            code = libc.mutex_trylock(self.mutex)
            if code == errno.ENOTRECOVERABLE:
                libc.mutex_init(self.mutex.value)
            elif code == errno.EOWNERDEAD:
                libc.mutex_consistent(self.mutex)
                libc.mutex_unlock(self.mutex)
            elif code == 0:
                libc.mutex_unlock(self.mutex)


_OP = table.OP >> 3
_WORDS = table.WORDS >> 3
_UNDO = table.UNDO >> 3
