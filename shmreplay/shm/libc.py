"""The handful of C functions that Python does not offer.

``_KEEP`` keeps the GIL during the call (locks: a thread that owns the lock must not wait
for the GIL), ``_FREE`` releases it (anything that may sleep or take long).
"""

import ctypes
import errno
import fcntl
import os

_KEEP = ctypes.PyDLL(None, use_errno=True)
_FREE = ctypes.CDLL(None, use_errno=True)

LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN

flock = _KEEP.flock
mutex_trylock = _KEEP.pthread_mutex_trylock
mutex_unlock = _KEEP.pthread_mutex_unlock
mutex_consistent = _KEEP.pthread_mutex_consistent

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def mutex_init(address: int) -> None:
    """Make a normal, robust, process-shared mutex of the bytes at ``address``."""
    attr = ctypes.create_string_buffer(64)
    mutex = ctypes.c_void_p(address)
    for code in (
        _KEEP.pthread_mutexattr_init(attr),
        _KEEP.pthread_mutexattr_setpshared(attr, 1),
        _KEEP.pthread_mutexattr_setrobust(attr, 1),
        _KEEP.pthread_mutex_init(mutex, attr),
    ):
        if code:
            raise OSError(code, "pthread_mutex_init: " + os.strerror(code))


def futex_wait(address: int, expected: int, timeout: float) -> bool:
    """Sleep until the int32 at ``address`` is woken, is not ``expected``, or ``timeout`` s passed (then False)."""
    seconds = int(timeout)
    spec = _Timespec(seconds, int((timeout - seconds) * 1e9))
    code = _FREE.syscall(
        _SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAIT, ctypes.c_int(expected), ctypes.byref(spec), None, 0
    )
    return code == 0 or ctypes.get_errno() != errno.ETIMEDOUT


def futex_wake(address: int, n: int = 1) -> int:
    """Wake up to ``n`` sleepers on the int32 at ``address``; returns how many."""
    return _FREE.syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, ctypes.c_int(n), None, None, 0)


def fallocate(fd: int, offset: int, nbytes: int) -> None:
    """Claim ``nbytes`` of a file; the system call itself, never glibc's writing fallback."""
    while True:
        if _FREE.fallocate(fd, 0, ctypes.c_long(offset), ctypes.c_long(nbytes)) == 0:
            return
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
