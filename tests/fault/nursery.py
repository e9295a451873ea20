"""Processes that are born warm: one server imports the library once, then forks a fresh child for each request.

A child runs ``function(pipe, *args)`` of an importable module and ends as the function says: by returning, by
``SystemExit``, by a signal. Its result or exception comes back over the pipe.
"""

import atexit
import contextlib
import ctypes
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PATIENCE = 60  # seconds; guards hangs only


class Child:
    """A process of the nursery, as the test sees it."""

    def __init__(self, server: "Nursery", pid: int, pipe: Connection):
        self.server, self.pid, self.pipe = server, pid, pipe
        self._pidfd = os.pidfd_open(pid)
        self._status = None

    def hear(self, timeout: float = PATIENCE):
        """The next thing that it sent."""
        assert self.pipe.poll(timeout), f"child {self.pid} said nothing for {timeout} s"
        return self.pipe.recv()

    def tell(self, message=None) -> None:
        self.pipe.send(message)

    def result(self, timeout: float = PATIENCE):
        """What its function returned; its exception is raised here."""
        try:
            kind, value = self.hear(timeout)
        except EOFError:
            raise AssertionError(f"child {self.pid} ended with {self.ended()} before it answered") from None
        if kind == "failed":
            raise value
        return value

    def kill(self, number: int = signal.SIGKILL) -> int:
        os.kill(self.pid, number)
        return self.ended()

    def ended(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; exit status, or minus the signal."""
        if self._status is None:
            ready, _, _ = select.select([self._pidfd], [], [], timeout)
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
            self._status = self.server.reap(self.pid)
            os.close(self._pidfd)
            assert ready, f"child {self.pid} did not end within {timeout} s"
        return self._status

    def finish(self, timeout: float = PATIENCE):
        """Its result, once it has ended well."""
        value = self.result(timeout)
        status = self.ended(timeout)
        assert status == 0, status
        return value


class Nursery:
    """The server, started at the first request."""

    def __init__(self):
        self._socket = self._process = None

    def _start(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = os.environ | {"SHMREPLAY_TEST_POINTS": "1", "PYTHONPATH": os.pathsep.join([ROOT, HERE, os.path.dirname(HERE)])}
        arguments = [sys.executable, os.path.join(HERE, "nursery.py"), str(other.fileno())]
        self._process = subprocess.Popen(arguments, pass_fds=[other.fileno()], env=env)
        other.close()
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._socket.close()
        self._process.wait(10)

    def start(self, function, *args) -> Child:
        """Fork a child that runs ``function(pipe, *args)`` with this process's environment variables."""
        if self._socket is None:
            self._start()
        mine, its = socket.socketpair()
        request = pickle.dumps((function, args, dict(os.environ)))
        socket.send_fds(self._socket, [b"start"], [its.fileno()])
        its.close()
        pipe = Connection(mine.detach())
        pipe.send_bytes(request)
        pid = int(self._socket.recv(64))
        return Child(self, pid, pipe)

    def run(self, function, *args, timeout: float = PATIENCE):
        """Run ``function(pipe, *args)`` to its end; its result."""
        return self.start(function, *args).finish(timeout)

    def reap(self, pid: int) -> int:
        self._socket.send(b"%d" % pid)
        return int(self._socket.recv(64))


NURSERY = Nursery()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve(control: socket.socket):
    """Answer requests; returns (connection, request) in a child, None at the end."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return None
        if message != b"start":
            _, status = os.waitpid(int(message), 0)
            control.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            _end_with_parent()
            control.close()
            pipe = Connection(fds[0])
            return pipe, pickle.loads(pipe.recv_bytes())
        os.close(fds[0])
        control.send(b"%d" % pid)


def _child(pipe: Connection, function, args, environment: dict) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    try:
        reply = ("done", function(pipe, *args))
    except SystemExit:
        raise
    except BaseException as error:
        error.add_note(traceback.format_exc())
        reply = ("failed", error)
    with contextlib.suppress(BrokenPipeError):
        pipe.send(reply)
    if not getattr(function, "ends_slowly", False):
        atexit._run_exitfuncs()  # as at the interpreter's exit, without taking torch apart
        sys.stdout.flush()
        os._exit(0)


@pytest.fixture
def home(monkeypatch):
    """Private places for segments and temporary records; both are gone afterwards."""
    root = tempfile.mkdtemp(prefix="shmreplay-test-", dir="/dev/shm")
    scratch = tempfile.mkdtemp(prefix="shmreplay-test-")
    monkeypatch.setenv("SHMREPLAY_DIR", root)
    monkeypatch.setenv("TMPDIR", scratch)
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield root
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def segments() -> list[str]:
    """Names of the segments that exist."""
    from shmreplay.shm.folders import folder

    return sorted(name for name in os.listdir(folder()) if not name.startswith("."))


def scratches() -> list[str]:
    """Names of the temporary record folders that exist."""
    from shmreplay.shm.folders import own_scratch

    return sorted(os.listdir(own_scratch())) if os.path.isdir(own_scratch()) else []


if __name__ == "__main__":
    import lives_leaks  # noqa: F401  warm before the first fork

    _end_with_parent()
    born = _serve(socket.socket(fileno=int(sys.argv[1])))
    if born is not None:
        _child(born[0], *born[1])
