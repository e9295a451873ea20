"""The contestants of the suite `wakeup`, in their own interpreters.

Each is a pair of processes: this one blocks, the other one writes. ``time.perf_counter_ns`` reads one clock for all
processes of the machine, so that an instant taken there can be subtracted here.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import multiprocessing
import platform
import statistics
import struct
import sys
import time
from multiprocessing.connection import Connection

from bench_suites.workloads import WORKLOADS

BATCH_COUNT = 32
UNBLOCKED_CALLS = 50
NOTIFY_EVENT = "shmreplay.notify"
_BLOCKED_PAUSE = 0.002
_DEADLINE = 20.0


def torch_api(module: str) -> dict:
    return {"wake": BufferPair(module).wake}


def bare_futex() -> dict:
    return {"wake": FutexPair().wake}


def _records():
    import torch
    from tensordict import TensorDict

    arrays = WORKLOADS["W1"].records(BATCH_COUNT)
    return TensorDict({name: torch.as_tensor(array) for name, array in arrays.items()}, batch_size=[BATCH_COUNT])


class BufferPair:
    """A sampler here and a writer in a child process, on one rate-limited buffer: one ``extend`` pays one sample."""

    def __init__(self, module: str) -> None:
        api = importlib.import_module(module)
        self._buffer = api.RateLimitedReplayBuffer(
            storage=api.LazyTensorStorage(10_000), batch_size=BATCH_COUNT, samples_per_insert=1.0, shared=True
        )
        self._records = _records()
        self._buffer.extend(self._records)
        self._buffer.sample()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=write_when_blocked, args=(self._buffer, module, theirs), daemon=True).start()
        theirs.close()
        _receive(self._pipe)

    def wake(self, count: int) -> dict[str, list[float]]:
        """Return microseconds beyond an unblocked sample, for ``count`` wake-ups."""
        unblocked = self._unblocked()
        usual = statistics.median(unblocked)
        from_notify, from_call = [], []
        for _ in range(count):
            self._pipe.send(self._buffer.stats().get("sample_wait_count", 0))
            self._buffer.sample(wait=True, timeout=_DEADLINE)
            returned = time.perf_counter_ns()
            called, notified = _receive(self._pipe)
            from_call.append((returned - called) / 1_000 - usual)
            if notified is not None:
                from_notify.append((returned - notified) / 1_000 - usual)
        result = {"wake from extend call": from_call, "unblocked sample": unblocked}
        return {**result, "wake from notify": from_notify} if from_notify else result

    def _unblocked(self) -> list[float]:
        calls = UNBLOCKED_CALLS
        for _ in range(calls):
            self._buffer.extend(self._records)
        times = []
        for _ in range(calls):
            begun = time.perf_counter_ns()
            self._buffer.sample(wait=True, timeout=_DEADLINE)
            times.append((time.perf_counter_ns() - begun) / 1_000)
        return times


def write_when_blocked(buffer, module: str, pipe: Connection) -> None:
    """The writer's process: one ``extend`` per request, after the sampler is seen to be blocked."""
    import torch

    torch.set_num_threads(1)
    notified: list[int] = []
    if module == "shmreplay":
        sys.addaudithook(_hook(notified))
    records = _records()
    pipe.send("ready")
    while True:
        try:
            waits_before = pipe.recv()
        except EOFError:
            return
        _wait_until_blocked(buffer, waits_before)
        notified.clear()
        called = time.perf_counter_ns()
        buffer.extend(records)
        if module == "shmreplay" and not notified:
            raise RuntimeError(f"extend woke a blocked sampler without the audit event {NOTIFY_EVENT}")
        pipe.send((called, notified[0] if notified else None))


def _hook(instants: list[int]):
    clock = time.perf_counter_ns

    def take_instant(event: str, _arguments: tuple) -> None:
        if event == NOTIFY_EVENT:
            instants.append(clock())

    return take_instant


def _wait_until_blocked(buffer, waits_before: int) -> None:
    # Ours tells who waits now; TorchRL counts the waits that began.
    deadline = time.monotonic() + _DEADLINE
    while True:
        stats = buffer.stats()
        if stats.get("waiting", 0) >= 1 or ("waiting" not in stats and stats["sample_wait_count"] > waits_before):
            break
        if time.monotonic() > deadline:
            raise TimeoutError("the sampler did not block")
        time.sleep(0.0005)
    time.sleep(_BLOCKED_PAUSE)


def _receive(pipe: Connection):
    if not pipe.poll(_DEADLINE + 40.0):
        raise TimeoutError("the writer's process did not answer")
    return pipe.recv()


class FutexPair:
    """The bound: a futex wait here, a futex wake in a forked child, and nothing else."""

    _WAIT, _WAKE = 0, 1
    _NUMBERS = {"x86_64": 202, "aarch64": 98}

    def __init__(self) -> None:
        self._number = self._NUMBERS[platform.machine()]
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)))
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        context.Process(target=self._wake_when_asked, args=(theirs, self._pipe), daemon=True).start()
        theirs.close()

    def _word(self) -> int:
        return struct.unpack_from("i", self._memory)[0]

    def _futex(self, operation: int, value: int) -> int:
        return self._syscall(self._number, self._address, operation, value, None, None, 0)

    def wake(self, count: int) -> dict[str, list[float]]:
        times = []
        while len(times) < count:
            seen = self._word()
            self._pipe.send("go")
            slept = self._futex(self._WAIT, seen) == 0
            returned = time.perf_counter_ns()
            woken = _receive(self._pipe)
            if slept:
                times.append((returned - woken) / 1_000)
        return {"wake from notify": times}

    def _wake_when_asked(self, pipe: Connection, parents: Connection) -> None:
        parents.close()  # else this process would hold the pipe open and never see its end
        while True:
            try:
                pipe.recv()
            except EOFError:
                return
            time.sleep(2 * _BLOCKED_PAUSE)
            struct.pack_into("i", self._memory, 0, self._word() + 1)
            woken = time.perf_counter_ns()
            self._futex(self._WAKE, 1)
            pipe.send(woken)
