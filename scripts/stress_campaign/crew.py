"""Child processes: started by any method, ended with their parent, their last words kept."""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback

import torch

_PR_SET_PDEATHSIG = 1
_ENOUGH = 60.0  # seconds; only guards hangs


def _be_child(parent: int, errors, work, arguments) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 != parent or (parent and os.getppid() != parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    torch.set_num_threads(1)
    status = 0
    try:
        work(*arguments)
        del arguments
    except BaseException:
        errors.send(traceback.format_exc())
        status = 1
    errors.close()
    os._exit(status)  # taking torch apart needs a second


class Child:
    """A started process."""

    def __init__(self, context, work, arguments: tuple) -> None:
        self._errors, end = context.Pipe(duplex=False)
        # what a forkserver starts is its child, and it ends with this process
        parent = 0 if context.get_start_method() == "forkserver" else os.getpid()
        self.process = context.Process(target=_be_child, args=(parent, end, work, arguments), daemon=True)
        self.process.start()
        end.close()

    def kill(self) -> bool:
        """Ends it with SIGKILL; False if it had ended before."""
        running = self.process.is_alive()
        self.process.kill()
        self.process.join()
        return running and self.process.exitcode == -signal.SIGKILL

    def last_words(self) -> str:
        """The traceback that it ended with, or ''."""
        try:
            return self._errors.recv() if self._errors.poll() else ""
        except (EOFError, OSError):
            return ""

    def close(self) -> None:
        """Gives up what the parent holds of a process that ended."""
        self.process.close()
        self._errors.close()


class Crew:
    """The children of one run, as a context: whoever still runs at its end is killed."""

    def __init__(self, start: str = "spawn", preload: tuple[str, ...] = ("shmreplay",)) -> None:
        self.context = multiprocessing.get_context(start)
        if start == "forkserver":
            self.context.set_forkserver_preload(list(preload))
        self._children: list[Child] = []

    def start(self, work, *arguments) -> Child:
        """Runs `work(*arguments)` in a process; `work` must be importable by name."""
        child = Child(self.context, work, arguments)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises with the traceback of a child that failed."""
        for child in self._children:
            if child.process.exitcode not in (None, 0):
                raise AssertionError(f"a child ended with {child.process.exitcode}\n{child.last_words()}")

    def finish(self, timeout: float = _ENOUGH) -> None:
        """Waits until all ended; raises if one failed or hangs."""
        deadline = time.monotonic() + timeout
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
        self.check()
        late = [child for child in self._children if child.process.is_alive()]
        assert not late, f"{len(late)} of {len(self._children)} children did not end within {timeout} s"

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_) -> None:
        for child in self._children:
            if child.process.is_alive():
                child.kill()
