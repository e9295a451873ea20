"""Processes of the tests, and what runs in them. Everything here can be imported by a spawned child."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback

import torch
from tensordict import TensorDict

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
PATIENCE = 200  # seconds; guards hangs only


def pairs(low: int, high: int, **extra) -> TensorDict:
    """Records whose two fields agree: a torn one shows."""
    values = torch.arange(low, high)
    return TensorDict({"x": values, "y": values.clone(), **extra}, [high - low])


class Servant:
    """A spawned process that calls functions of importable modules on what it is sent, one after another."""

    def __init__(self):
        self._pipe, other = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self.pid = self._process.pid

    def ask(self, function, *args) -> None:
        """Begin ``function(*args)`` there; the buffers among the arguments travel as handles."""
        self._pipe.send((function, args))

    def answer(self, timeout: float = PATIENCE):
        """What it returned; its exception is raised here."""
        if not self._pipe.poll(timeout):
            raise AssertionError(f"no answer from {self.pid} within {timeout} s")
        failed, value, trace = self._pipe.recv()
        if failed:
            value.add_note(trace)
            raise value
        return value

    def call(self, function, *args):
        self.ask(function, *args)
        return self.answer()

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            reply = (False, function(*args), "")
        except BaseException as error:
            reply = (True, error, traceback.format_exc())
            error.__traceback__ = None
        pipe.send(reply)
        del function, args, reply
        gc.collect()


def all_at_once(crew, *jobs) -> list:
    """Run the jobs (function, *args), one a servant, at the same time; their results in order."""
    for servant, job in zip(crew, jobs, strict=False):
        servant.ask(*job)
    return [servant.answer() for servant, _ in zip(crew, jobs)]


def in_fork(function, *args, method=FORK, expect: int = 0) -> None:
    """Run ``function(*args)`` in a new process; its exit status must be ``expect``."""
    process = method.Process(target=function, args=args)
    process.start()
    process.join(PATIENCE)
    alive = process.is_alive()
    if alive:
        process.kill()
        process.join()
    assert not alive and process.exitcode == expect, (alive, process.exitcode)


# -- what runs in children -----------------------------------------------------------------------------------------


def call(buffer, name: str, *args, **kwargs):
    """``buffer.name(*args)``."""
    return getattr(buffer, name)(*args, **kwargs)


def extend(buffer, low: int, high: int, step: int | None = None) -> None:
    for start in range(low, high, step or high - low):
        buffer.extend(pairs(start, min(high, start + (step or high - low))))


def add(buffer, low: int, high: int) -> None:
    for i in range(low, high):
        buffer.add(pairs(i, i + 1)[0])


def empty_and_extend(buffer, low: int, high: int) -> None:
    buffer.empty()
    buffer.extend(pairs(low, high))


def generations(buffer, n: int) -> list[int]:
    return buffer.writer.generations_of(torch.arange(-1, n)).tolist()


def seen(buffer) -> dict:
    """All that one process can tell about the buffer."""
    stats = buffer.stats()
    return {
        "len": len(buffer),
        "write_count": buffer.write_count,
        "generations": generations(buffer, buffer.storage.max_size + 2),
        "x": buffer[:]["x"].tolist() if len(buffer) else [],
        "stats": {k: v for k, v in stats.items() if not k.endswith("_members")},  # who is attached differs as they come and go
        "can_sample": buffer.can_sample(1),
    }


def count_torn(buffer, rounds: int, batch: int) -> int:
    """Sampled rows whose fields, slot or generation do not belong together."""
    torn = 0
    for _ in range(rounds):
        sample = buffer.sample(batch)
        torn += int((sample["x"] != sample["y"]).sum())
        torn += int((sample["index_generation"] < 0).sum())
    return torn


def drain(buffer, batch: int, target: int) -> int:
    """Sample until all processes together have ``target`` records; how many came here."""
    total, end = 0, time.monotonic() + PATIENCE
    while buffer.stats()["samples_returned"] < target and time.monotonic() < end:
        try:
            total += buffer.sample(batch, wait=True, timeout=0.1).numel()
        except TimeoutError:
            pass
    return total


def sample_many(buffer, rounds: int, batch: int) -> tuple[int, int]:
    """(records, private memory that it took, in bytes)."""
    buffer.sample(batch, wait=True, timeout=PATIENCE)
    before, total = _private_nbytes(), batch
    for _ in range(rounds - 1):
        sample = buffer.sample(batch, wait=True, timeout=PATIENCE)
        assert (sample["x"] == sample["y"]).all() and (sample["obs"][:, 0] == sample["x"]).all()
        total += sample.numel()
    return total, _private_nbytes() - before


def _private_nbytes() -> int:
    with open("/proc/self/smaps_rollup") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Private_"))


def wait_for_sample(buffer, batch: int) -> list:
    return buffer.sample(batch, wait=True, timeout=PATIENCE)["x"].tolist()


def descriptors_used(buffer, rounds: int) -> int:
    """How many more descriptors are open after writing and sampling, all samples kept."""
    buffer.sample(4)
    before, kept = len(os.listdir("/proc/self/fd")), []
    for i in range(rounds):
        buffer.extend(pairs(i, i + 1))
        kept.append(buffer.sample(4))
    return len(os.listdir("/proc/self/fd")) - before


def draw(buffer, n: int) -> tuple:
    return tuple(buffer.sample(n)["x"].tolist())


def draw_into(buffer, n: int, queue) -> None:
    queue.put(draw(buffer, n))


def die_at(point: str, function, *args) -> None:
    """Call ``function(*args)`` and be killed at the named point."""

    def kill(event, _):
        if event == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    function(*args)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def own_and_die(capacity: int) -> None:
    """Make a shared buffer, fill it and be killed."""
    import shmreplay

    buffer = shmreplay.TensorDictReplayBuffer(storage=shmreplay.LazyTensorStorage(capacity), shared=True)
    buffer.extend(pairs(0, capacity))
    die()


def reopen_and_die(folder: str, expected: int) -> None:
    """Go on with a folder that a killed process left, and be killed."""
    import shmreplay

    storage = shmreplay.LazyMemmapStorage(8, scratch_dir=folder, existsok=True)
    buffer = shmreplay.TensorDictReplayBuffer(storage=storage, shared=True)
    assert buffer.write_count == expected, buffer.write_count
    if expected:
        assert buffer[:]["x"].tolist() == list(range(8))
    buffer.extend(pairs(0, 8))
    die()


def refuse_cuda(buffer) -> None:
    """Use a buffer where touching CUDA raises."""

    def refuse(*_):
        raise AssertionError("CUDA was touched")

    torch.cuda._lazy_init = refuse
    buffer.extend(pairs(0, 4))
    assert buffer.sample(4)["x"].max() < 4
    buffer.state_dict()
    assert not torch.cuda.is_initialized()


def in_thread(function, *args) -> tuple[threading.Thread, list]:
    """Run ``function(*args)`` in a thread; its result or exception is the list's one entry when it has ended."""
    result = []

    def run():
        try:
            result.append(function(*args))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, result
