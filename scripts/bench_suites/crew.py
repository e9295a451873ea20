"""The driver's side of the contestants: one child process each, asked in turns.

Children stay alive through a run, so that a buffer is filled once and the rounds of all contestants interleave
closely: the machine's speed wanders over seconds, and only neighbours in time can be compared.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

from bench_suites.model import Contestant
from bench_suites.peers import Hosts, distributions

START_TIMEOUT = 300.0
ASK_TIMEOUT = 120.0


class ChildError(RuntimeError):
    """A child answered with an error, ended, or did not answer in time."""

    def __init__(self, message: str, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class Child:
    """One contestant's process and its two pipes. Only the thread that asks may touch it."""

    def __init__(self, contestant: Contestant, hosts: Hosts) -> None:
        self.contestant = contestant
        self.operations: list[str] = []
        self.versions: dict[str, str] = {}
        self._unread = b""
        self._stderr = tempfile.TemporaryFile()
        command = [hosts.pythons[contestant.host], "-m", "bench_suites.child", contestant.target]
        command += [json.dumps(contestant.arguments), *distributions(contestant.host)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=hosts.environment(contestant.host),
            start_new_session=True,  # its workers share the group, so that one signal ends them all
        )

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        ready = self._read(timeout)
        self.operations = ready["operations"]
        self.versions = ready["versions"]

    def ask(self, operation: str, timeout: float = ASK_TIMEOUT, **arguments):
        request = json.dumps({"operation": operation, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise ChildError(f"ended: {self._last_words() or error}", fatal=True) from error
        return self._read(timeout)

    def _read(self, timeout: float):
        message = json.loads(self._read_line(time.monotonic() + timeout, timeout))
        if "error" in message:
            lines = message["error"].strip().splitlines()
            raise ChildError(lines[-1], fatal=not self.operations)
        return message["result"]

    def _read_line(self, deadline: float, timeout: float) -> bytes:
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise ChildError(f"no answer within {timeout:g} s", fatal=True)
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise ChildError(f"ended: {self._last_words()}", fatal=True)
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """Return the last line of stderr, else the exit status, of a process whose pipes have closed."""
        try:
            status = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            status = "unknown"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"

    def end_input(self) -> None:
        """Ask the process to end by itself, so that it can free its shared memory."""
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def close(self, grace: float = 10.0) -> None:
        """End the process and its workers, by force if it takes longer than ``grace`` seconds."""
        self.end_input()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()


class Crew:
    """The children of one part of a suite, as a context manager.

    A contestant that fails becomes a line in ``problems``, with ``label`` in front; the others go on without it.
    """

    def __init__(self, label: str, contestants: list[Contestant], hosts: Hosts, problems: list[str]) -> None:
        self._label = label
        self._problems = problems
        self._contestants = [contestant for contestant in contestants if contestant.host in hosts]
        self._hosts = hosts
        self._children: list[Child] = []
        self._refused: set[tuple[str, str]] = set()

    def __enter__(self) -> Crew:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end_input()
        for child in self._children:
            child.close()
        self._children = []

    def _start_all(self) -> None:
        # Imports and filling take seconds: as many at a time as there are cores.
        waiting = list(self._contestants)
        starting: list[Child] = []
        while waiting or starting:
            while waiting and len(starting) < (os.cpu_count() or 1):
                starting.append(Child(waiting.pop(0), self._hosts))
                self._children.append(starting[-1])
            child = starting.pop(0)
            try:
                child.wait_ready()
            except ChildError as error:
                self._problems.append(f"{self._label}, {child.contestant.name} could not start: {error}")
                self._children.remove(child)
                child.close(grace=1.0)
            else:
                self._hosts.versions[child.contestant.host] = child.versions

    def ask_all(self, operation: str, turn: int, timeout: float = ASK_TIMEOUT, **arguments) -> Iterator[tuple]:
        """Ask every child that knows the operation, one after another; yield (contestant, result).

        ``turn`` rotates who comes first: whoever follows a heavy neighbour finds colder caches.
        """
        children = [child for child in self._children if operation in child.operations]
        first = turn % len(children) if children else 0
        for child in children[first:] + children[:first]:
            if (child.contestant.name, operation) in self._refused:
                continue
            try:
                result = child.ask(operation, timeout, **arguments)
            except ChildError as error:
                self._drop(child, operation, error)
            else:
                yield child.contestant, result

    def _drop(self, child: Child, operation: str, error: ChildError) -> None:
        self._problems.append(f"{self._label}, {child.contestant.name}, {operation}: {error}")
        self._refused.add((child.contestant.name, operation))
        if error.fatal:
            self._children.remove(child)
            child.close(grace=0.0)
