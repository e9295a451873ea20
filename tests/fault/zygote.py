"""A warm process that forks victims: torch is imported once, with one thread, and named points inside the lock are on.

``Zygote`` starts it; ``Victim`` is one forked process, which runs ``work(connection, *arguments)`` and ends without any
clean-up. Who waits for a victim waits on its pidfd: that is readable when the kernel has let go of all it held.
"""

import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection

import shmreplay

_GUARD = 20.0  # seconds; only guards hangs
_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(shmreplay.__file__))


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(fd: int) -> None:
    """The warm process: fork a victim for each message."""
    import torch

    _end_with_parent()
    torch.set_num_threads(1)
    door = socket.socket(fileno=fd)
    while True:
        message, fds, *_ = socket.recv_fds(door, 1 << 20, 1)
        if not message:
            os._exit(0)
        _reap()
        pid = os.fork()
        if pid == 0:
            door.close()
            _be_victim(fds[0], *pickle.loads(message))
        os.close(fds[0])
        door.send(pid.to_bytes(4, "little"))


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _be_victim(fd: int, work, arguments: tuple) -> None:
    _end_with_parent()
    connection = Connection(fd)
    try:
        work(connection, *arguments)
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
    os._exit(0)


class Victim:
    """A forked process and the parent's end of its connection."""

    def __init__(self, zygote: "Zygote", work, *arguments):
        mine, its = socket.socketpair()
        socket.send_fds(zygote.door, [pickle.dumps((work, arguments))], [its.fileno()])
        self.pid = int.from_bytes(zygote.door.recv(4), "little")
        self._pidfd = os.pidfd_open(self.pid)
        its.close()
        self._connection = Connection(mine.detach())

    def recv(self, where: str = ""):
        """The next thing that it says; fails the test with its traceback if it failed."""
        assert self._connection.poll(_GUARD), f"the victim hangs {where}"
        try:
            said = self._connection.recv()
        except EOFError:
            raise AssertionError(f"the victim ended without a word {where}") from None
        if isinstance(said, tuple) and said[0] == "failed":
            raise AssertionError(f"{said[1]}{where}")
        return said

    def send(self, thing) -> None:
        """Tell it something."""
        self._connection.send(thing)

    def signal(self, number: int) -> None:
        """Send a signal to it."""
        signal.pidfd_send_signal(self._pidfd, number)

    def wait_end(self) -> None:
        """Until the kernel has taken it apart."""
        ended, _, _ = select.select([self._pidfd], [], [], _GUARD)
        assert ended, "the victim lives on"
        os.close(self._pidfd)
        self._connection.close()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.wait_end()

    def wait_stopped(self) -> None:
        """Until it stands still after SIGSTOP."""
        path = f"/proc/{self.pid}/stat"
        while True:
            with open(path, "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] == b"T":
                    return


class Zygote:
    """The warm process, as a context."""

    def __init__(self):
        self.door, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([_HERE, _ROOT, os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"SHMREPLAY_TEST_POINTS": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", f"import zygote; zygote.serve({its.fileno()})"]
        self._process = subprocess.Popen(command, env=env, pass_fds=[its.fileno()], cwd=_HERE)
        its.close()

    def victim(self, work, *arguments) -> Victim:
        """Fork one that runs ``work(connection, *arguments)``; ``work`` is importable from this folder."""
        return Victim(self, work, *arguments)

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_) -> None:
        self.door.close()
        self._process.wait(_GUARD)
