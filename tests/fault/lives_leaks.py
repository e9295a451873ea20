"""What children of the nursery do, and records whose fields agree, so that a torn one shows."""

import ctypes
import os
import resource
import select
import signal
import sys

import torch
from tensordict import TensorDict

import lives_fork  # noqa: F401  warm, as all that children run
import lives_memmap  # noqa: F401
import lives_space  # noqa: F401
from lives_common import pairs, rss_private, torn
from shmreplay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer, attach

__all__ = ["TensorDict", "pairs", "torn"]


def make(capacity: int = 64, scratch=None, **kwargs) -> TensorDictReplayBuffer:
    """A shared buffer in memory, or in files (``scratch``: a folder, or "ours")."""
    if scratch is None:
        storage = LazyTensorStorage(capacity)
    elif scratch == "ours":
        storage = LazyMemmapStorage(capacity)
    else:
        storage = LazyMemmapStorage(capacity, scratch_dir=scratch, existsok=True)
    return TensorDictReplayBuffer(storage=storage, shared=True, **kwargs)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


# -- leaks ---------------------------------------------------------------------------------------------------------


def make_and_drop(pipe, rounds: int) -> dict:
    """Create and drop buffers of every kind; what was open after 20 and after ``rounds``."""
    import gc

    kinds = (
        lambda: make(64),
        lambda: make(64, "ours"),
        lambda: make(64, samples_per_insert=2),
        lambda: make(64).share(False),
        lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(64)),
    )
    seen = {}
    for i in range(rounds):
        buffer = kinds[i % len(kinds)]()
        buffer.extend(pairs(0, 8))
        assert not torn(buffer.sample(4))
        del buffer
        if i in (20, rounds - 1):
            gc.collect()
            seen[i] = (descriptors(), mappings())
    return {"early": seen[20], "late": seen[rounds - 1]}


def own_and_end(pipe, how: str, scratch) -> None:
    """Own a buffer that was used, then end as ``how`` says."""
    buffer = make(64, scratch)
    buffer.extend(pairs(0, 32))
    buffer.sample(8)
    pipe.send(buffer.path)
    if how == "os._exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(4)
    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exception":
        raise ValueError("the end")


own_and_end.ends_slowly = True


def own_until_told(pipe, scratch=None) -> int:
    """Own a buffer, say where, and keep it until told to end; how many records it then has."""
    buffer = make(64, scratch)
    buffer.extend(pairs(0, 32))
    pipe.send(buffer.path)
    pipe.recv()
    return len(buffer)


def attach_until_told(pipe, path: str, use: bool) -> list:
    """Attach, say so, wait to be told; what the buffer then holds."""
    buffer = attach(path)
    if use:
        buffer.sample(4)
    pipe.send("attached")
    pipe.recv()
    buffer.extend(pairs(32, 40))
    return buffer[:]["x"].tolist()


def stop_at(pipe, point: str, scratch=None) -> int:
    """Create a buffer; at the named point, say so and wait to be told."""

    def hook(event, _):
        if event == point:
            pipe.send(point)
            pipe.recv()

    sys.addaudithook(hook)
    buffer = make(64, scratch)
    buffer.extend(pairs(0, 32))
    return len(buffer)


def die_at(pipe, point: str, function, *args) -> None:
    """Call ``function(pipe, *args)`` and be killed at the named point."""

    def hook(event, _):
        if event == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    function(pipe, *args)


def kill_parent() -> None:
    """Kill this process's parent and wait until it is gone."""
    parent = os.getppid()
    handle = os.pidfd_open(parent)
    os.kill(parent, signal.SIGKILL)
    select.select([handle], [], [], 60)


def orphan(pipe) -> None:
    """A forked child that used the buffer goes on with it after its parent, the creator, was killed."""
    buffer = make(64)
    buffer.extend(pairs(0, 32))
    if os.fork():
        signal.pause()
    ctypes.CDLL(None).prctl(1, 0)
    buffer.sample(4)
    kill_parent()
    pipe.send(buffer.path)
    pipe.recv()
    buffer.extend(pairs(32, 40))
    pipe.send(buffer[:]["x"].tolist())
    os._exit(0)


def create_once(pipe) -> list[str]:
    """Create a buffer, as the next one who does; which segments exist beside it then."""
    from nursery import segments

    buffer = make(8)
    return [name for name in segments() if not buffer.path.endswith(name)]


def sweep(pipe) -> int:
    from shmreplay import cleanup_stale

    return cleanup_stale()


def costs(pipe, n: int) -> dict:
    """Descriptors and private memory that attaching ``n`` buffers and using them takes, each."""
    paths = pipe.recv()
    first = attach(paths[0])
    first.extend(pairs(0, 64, 64))
    first.sample(32)
    before, memory = descriptors(), rss_private()
    buffers = [attach(path) for path in paths[1:]]
    for buffer in buffers:
        buffer.extend(pairs(0, 64, 64))
        for _ in range(20):
            assert not torn(buffer.sample(32))
    return {"fds": (descriptors() - before) / n, "nbytes": (rss_private() - memory) / n}


def own_many(pipe, kind: str, lock: str, n: int) -> None:
    """Own ``n`` buffers until told."""
    ours = {"tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}[kind]
    buffers = [TensorDictReplayBuffer(storage=ours(100_000, lock=lock), shared=True) for _ in range(n)]
    for buffer in buffers:
        buffer.extend(pairs(0, 1000, 64))
    pipe.send([buffer.path for buffer in buffers])
    pipe.recv()


def use_without_descriptors(pipe, path: str) -> str:
    """Attach with no descriptor left; the error, and that the buffer works when there is room again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))
    try:
        attach(path)
        said = "nothing"
    except OSError as error:
        said = os.strerror(error.errno)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    buffer = attach(path)
    buffer.extend(pairs(32, 40))
    assert buffer.stats()["live_members"] == 2
    assert torch.equal(buffer[:]["x"], torch.arange(40))
    return said
