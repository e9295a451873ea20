"""Child processes: how the supervisor starts, kills and watches them, and how they notice that it is gone."""

import contextlib
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker

import torch

from train_dqn import orphans

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PROBE_EVERY = 0.2


class Family:
    """What a child knows of its supervisor."""

    def __init__(self, supervisor: int, start: str) -> None:
        # A forkserver stands between supervisor and child; it leaves with the supervisor.
        self._parent = supervisor if start != "forkserver" else None
        self._next_probe = 0.0
        self._alive = True

    def alive(self) -> bool:
        """Whether the supervisor lives; an answer may be 0.2 seconds old."""
        now = time.monotonic()
        if now >= self._next_probe:
            self._next_probe = now + _PROBE_EVERY
            orphaned = self._parent is not None and os.getppid() != self._parent
            self._alive = not orphaned and multiprocessing.parent_process().is_alive()
        return self._alive


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Holds back Ctrl-C: a child that is still importing would answer it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_child(work: Callable, family: Family, errors: object, board: object, *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor gets it too, and says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    orphans.end_with_parent(0)  # from here on it looks for itself, and leaves in order
    torch.set_num_threads(1)
    status = 0
    try:
        work(family, board, *arguments)
    except Exception:
        # Waits end with an error when the buffer is shut down: no failure once the run is over.
        if not board.stopped and family.alive():
            errors.send(traceback.format_exc())
            status = 1
    gc.freeze()  # else the interpreter's last collection walks all of torch, for a second and more when all end at once
    raise SystemExit(status)


@dataclasses.dataclass
class _Child:
    name: str
    process: multiprocessing.Process
    errors: object
    killed: bool = False


class Fleet:
    """The children of one run. Only the supervisor holds one."""

    def __init__(self, start: str, board: object) -> None:
        self._context = multiprocessing.get_context(start)
        if start == "forkserver":
            self._context.set_forkserver_preload(["train_dqn.orphans", "train_dqn.run"])
        resource_tracker.ensure_running()  # else the first child starts it, and it lets Ctrl-C through again
        self._family = Family(os.getpid(), start)
        self._board = board
        self._children: list[_Child] = []

    def start(self, name: str, work: Callable, *arguments: object) -> None:
        """Starts a process that runs `work(family, board, *arguments)`; `work` must be importable by name."""
        errors, child_end = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_be_child, name=name, args=(work, self._family, child_end, self._board, *arguments), daemon=True
        )
        with _signals_held():
            process.start()
        child_end.close()
        self._children.append(_Child(name, process, errors))

    def alive(self, prefix: str) -> list[_Child]:
        """Returns the living children whose name starts so."""
        return [child for child in self._children if child.name.startswith(prefix) and child.process.is_alive()]

    def kill(self, child: _Child) -> None:
        """Ends a child with SIGKILL, wherever it is."""
        child.killed = True
        child.process.kill()
        child.process.join()

    def failures(self) -> list[str]:
        """Returns one text for each child that ended though nobody killed or stopped it."""
        return [
            f"{child.name} ended with status {child.process.exitcode}\n{_last_words(child)}".rstrip()
            for child in self._children
            if not child.killed and not child.process.is_alive()
        ]

    def wait(self, timeout: float) -> None:
        """Sleeps until a child ends, at most `timeout` seconds."""
        sentinels = [child.process.sentinel for child in self._children if child.process.is_alive()]
        multiprocessing.connection.wait(sentinels, timeout)

    def close(self, timeout: float) -> int:
        """Waits for all to end, kills the rest after `timeout` seconds and returns how many those were."""
        deadline = time.monotonic() + timeout
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
        late = [child for child in self._children if child.process.is_alive()]
        for child in late:
            self.kill(child)
        return len(late)


def _last_words(child: _Child) -> str:
    try:
        return child.errors.recv() if child.errors.poll() else ""
    except (EOFError, OSError):
        return ""
