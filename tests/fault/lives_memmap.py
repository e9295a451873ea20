"""What children do with a folder that the user named."""

import os
import signal
import sys

import torch

from lives_common import pairs, torn, whole
from shmreplay import LazyMemmapStorage, ReplayBuffer, TensorDictReplayBuffer, TensorDictRoundRobinWriter

CAPACITY = 64


def reopen(folder: str, capacity: int = CAPACITY, existsok: bool = True, **kwargs) -> TensorDictReplayBuffer:
    """The buffer in a folder that the user named."""
    storage = LazyMemmapStorage(capacity, scratch_dir=folder, existsok=existsok)
    writer = TensorDictRoundRobinWriter(track_generations=True)
    return TensorDictReplayBuffer(storage=storage, writer=writer, shared=True, batch_size=8, **kwargs)


def facts(pipe, folder: str, capacity: int = CAPACITY, **kwargs) -> dict:
    """Open, tell all, leave."""
    buffer = reopen(folder, capacity, **kwargs)
    return checked(buffer)


def checked(buffer) -> dict:
    buffer.storage.state.check_valid()
    return whole(buffer)


def refusal(pipe, folder: str, capacity: int, existsok: bool) -> tuple[str, str]:
    """The error that opening the folder raises: kind and text."""
    try:
        reopen(folder, capacity, existsok)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def write_until_killed(pipe, folder: str, size: int) -> None:
    """Say after each write how many records are committed."""
    buffer = reopen(folder)
    pipe.send(checked(buffer))
    n = buffer.write_count
    while True:
        buffer.extend(pairs(n, n + size))
        n += size
        pipe.send(n)


def write_and_leave(pipe, folder: str, low: int, high: int, end: str = "return", **kwargs) -> dict:
    buffer = reopen(folder, **kwargs)
    buffer.extend(pairs(low, high))
    seen = checked(buffer)
    pipe.send(seen)
    if end == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    return seen


def die_at(pipe, folder: str, point: str, low: int, high: int, **kwargs) -> None:
    """Write, say what is there, then be killed at the named point of the next write."""
    buffer = reopen(folder, **kwargs)
    buffer.extend(pairs(0, 40))
    armed = []

    def hook(event, _):
        if armed and event == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    pipe.send(whole(buffer))
    armed.append(True)
    buffer.extend(pairs(low, high))


def die_opening(pipe, folder: str, point: str) -> None:
    def hook(event, _):
        if event == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    reopen(folder).extend(pairs(0, 8))


def hold_slots(pipe, folder: str) -> None:
    """Hold slots in flight until killed."""
    buffer = reopen(folder)
    buffer.extend(pairs(0, CAPACITY))

    def hook(event, _):
        if event == "shmreplay.copied":
            pipe.send("holds")
            signal.pause()

    sys.addaudithook(hook)
    buffer.extend(pairs(CAPACITY, CAPACITY + 16))


def block(pipe, folder: str, how: str) -> None:
    """Attach and wait in a queue until killed: for slots in flight, or for budget."""
    from shmreplay import attach

    buffer = attach(folder)
    point = "shmreplay.blocked" if how == "slots" else "shmreplay.waiting"
    said = []

    def hook(event, _):
        if event == point and buffer.storage.ring.words[11] and not said:  # W_SLEEPERS: it has a ticket
            said.append(pipe.send("waits"))

    sys.addaudithook(hook)
    if how == "slots":
        buffer.writer.write_at(torch.arange(16), pairs(0, 16))
    else:
        buffer.sample(1000, wait=True)


def close_everywhere(pipe, folder: str) -> None:
    buffer = reopen(folder)
    buffer.extend(pairs(0, 10))
    buffer.shutdown(everywhere=True)


def use(pipe, folder: str, **kwargs) -> dict:
    """Everything works again."""
    buffer = reopen(folder, **kwargs)
    n = buffer.write_count
    buffer.extend(pairs(n, n + 100), timeout=30)
    buffer.writer.write_at(torch.arange(16), pairs(0, 16))
    assert not torn(buffer.sample(wait=True, timeout=30))
    buffer.empty(False)
    buffer.extend(pairs(n, n + 10), timeout=30)
    return checked(buffer)


def race(pipe, folder: str, existsok: bool) -> tuple[str, str]:
    """Open at the same time as others; keep it until told, if it is ours."""
    pipe.recv()
    try:
        buffer = reopen(folder, existsok=existsok)
    except Exception as error:
        return type(error).__name__, str(error)
    buffer.extend(pairs(0, 8))
    pipe.send("has it")
    pipe.recv()
    return "", ""


def several(pipe, folder: str, n: int) -> list[tuple[int, int]]:
    """Two buffers on one storage: (calls, records returned) of each, after one more sample."""
    storage = LazyMemmapStorage(CAPACITY, scratch_dir=folder, existsok=True)
    buffers = [ReplayBuffer(storage=storage, shared=True, samples_per_insert=ratio) for ratio in (1.0, 2.0)]
    if not len(storage):
        buffers[0].extend(torch.arange(40))
    for buffer, size in zip(buffers, (n, 2 * n)):
        buffer.sample(size)
    return [(buffer.stats()["sample_calls"], buffer.stats()["samples_returned"]) for buffer in buffers]
