"""Forks in odd places, each in a child of the nursery that may hang or die without harm."""

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading

import torch

from lives_common import pairs, torn
from shmreplay import ForkError, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer

LARGE = 1024  # float32: a column of its own
PATIENCE = 30


def make(capacity: int = 256, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), shared=True, batch_size=8, **kwargs)


def in_fork(function, *args, expect: int = 0, patience: float = PATIENCE) -> None:
    """Run ``function`` in a child that ends without any clean-up; it must come back in time."""
    pid = os.fork()
    if not pid:
        code = 99
        try:
            function(*args)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
    handle = os.pidfd_open(pid)
    ready, _, _ = select.select([handle], [], [], patience)
    os.close(handle)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert ready, "the forked child hangs"
    assert os.waitstatus_to_exitcode(status) == expect, os.waitstatus_to_exitcode(status)


def exercise(buffer, low: int, width: int = 4) -> None:
    buffer.extend(pairs(low, low + 16, width), timeout=PATIENCE)
    sample = buffer.sample(wait=True, timeout=PATIENCE)
    assert not torn(sample) and sample["x"].max() < 10**6
    segment = buffer.storage.segment
    assert segment.members.row == segment.row >= 0


def while_threads_run(pipe, rounds: int, width: int) -> int:
    """Fork again and again while threads write and sample: they hold the lock or copy at that moment."""
    buffer = make()
    buffer.extend(pairs(0, 64, width))
    stop, failed = threading.Event(), []

    def work(low: int) -> None:
        while not stop.is_set():
            try:
                buffer.extend(pairs(low, low + 16, width), timeout=PATIENCE)
                assert not torn(buffer.sample(timeout=PATIENCE, wait=True))
            except BaseException as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(rounds):
            in_fork(exercise, buffer, 10_000 + 16 * i, width)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    del threads
    assert not buffer.stats()["waiting"] and not torn(buffer[:])
    buffer.storage.state.check_valid()
    return len(buffer)


def after_openmp(pipe, method: str) -> None:
    """The parent used torch with two threads: an OpenMP region in the child would hang."""
    torch.set_num_threads(2)
    big = torch.rand(1 << 21)
    for _ in range(3):
        (big * big).sum()
        torch.index_select(big.view(-1, 1024), 0, torch.arange(2048))
    buffer = make(2048)
    buffer.extend(pairs(0, 1024, LARGE))
    buffer.sample(512)
    data = pairs(0, 1024, LARGE)
    if method == "noncontiguous":
        data["obs"] = data["obs"].t().contiguous().t()
    in_fork(_large, buffer, method, data)
    assert not torn(buffer.sample(512))


def _large(buffer, method: str, data) -> None:
    """Large reads and writes; nothing here but the library may use torch on large data."""
    if method == "read":
        records = buffer[:]
        assert buffer[torch.arange(600)]["obs"].shape == (600, LARGE)
        assert buffer.state_dict()["_storage"]["_len"] == 1024
        assert (records["obs"].numpy() == records["x"].numpy()[:, None]).all()
        return
    if method == "empty":
        buffer.empty()
    buffer.extend(data)
    for _ in range(3):
        sample = buffer.sample(512, wait=True, timeout=PATIENCE)
        assert (sample["obs"].numpy() == sample["x"].numpy()[:, None]).all()


def never_used(pipe) -> None:
    """Fork from a process that holds a handle which it never used; and one that attached and never used."""
    from shmreplay import attach

    path = pipe.recv()
    buffer = attach(path)
    in_fork(exercise, buffer, 100)
    in_fork(exercise, buffer, 200)
    exercise(buffer, 300)


def own_for_others(pipe) -> None:
    buffer = make()
    buffer.extend(pairs(0, 64))
    pipe.send(buffer.path)
    pipe.recv()
    assert not torn(buffer[:])


def nested(pipe) -> dict:
    """Three generations, each with a seat of its own, all alive at once."""
    buffer = make()
    buffer.extend(pairs(0, 16))
    rows = multiprocessing.get_context("fork").SimpleQueue()

    def below(depth: int) -> None:
        exercise(buffer, 100 * depth)
        rows.put((depth, buffer.storage.segment.row, buffer.storage.segment.inc, buffer.stats()["live_members"]))
        if depth < 3:
            in_fork(below, depth + 1)
        exercise(buffer, 100 * depth + 50)

    below(0)
    seen = sorted(rows.get() for _ in range(4))
    return {"rows": [row for _, row, _, _ in seen], "incs": [inc for _, _, inc, _ in seen],
            "live": [live for *_, live in seen], "left": buffer.stats()["live_members"]}  # fmt: skip


def while_blocked(pipe) -> None:
    """Fork while another thread waits in ``sample(wait=True)``: its ticket stays the parent's."""
    buffer = make(samples_per_insert=1.0)
    blocked, got = threading.Event(), []

    def hook(event, _):
        if event == "shmreplay.waiting":
            blocked.set()

    sys.addaudithook(hook)
    thread = threading.Thread(target=lambda: got.append(buffer.sample(16, wait=True, timeout=PATIENCE)))
    thread.start()
    assert blocked.wait(PATIENCE)

    def child() -> None:
        assert buffer.stats()["waiting"] == 1 and not buffer.can_sample(1)
        buffer.extend(pairs(0, 8))
        try:
            buffer.sample(4)
            raise AssertionError("served before the one who asked first")
        except RuntimeError:
            pass
        buffer.extend(pairs(8, 16))

    in_fork(child)
    thread.join(PATIENCE)
    assert len(got) == 1 and not torn(got[0])
    stats = buffer.stats()
    assert stats["samples_returned"] == 16 and stats["sample_budget"] == stats["reserved_samples"] == 0


class Sampled(torch.utils.data.Dataset):
    """A data set that samples from a shared buffer in each worker."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index):
        sample = self.buffer.sample(8)
        assert not torn(sample)
        return sample["x"]


def in_data_loader(pipe, method: str) -> dict:
    buffer = make(1024)
    buffer.extend(pairs(0, 1024))
    loader = torch.utils.data.DataLoader(
        Sampled(buffer), batch_size=4, num_workers=2, multiprocessing_context=method, timeout=PATIENCE
    )
    rows = [tuple(row.tolist()) for batch in loader for row in batch]
    calls = buffer.stats()["sample_calls"]
    return {"rows": len(rows), "different": len(set(rows)), "calls": calls}


def unshared(pipe, kind: str) -> list[str]:
    """Each use of an unshared buffer in a forked child; what it raised."""
    from shmreplay import LazyMemmapStorage, ListStorage

    storage = {"tensor": LazyTensorStorage, "memmap": LazyMemmapStorage, "list": ListStorage}[kind](64)
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(torch.arange(16))
    calls = [
        lambda: buffer.extend(torch.arange(4)), lambda: buffer.add(torch.tensor(1)), buffer.sample, buffer.empty,
        buffer.stats, lambda: buffer[:], lambda: buffer[0], buffer.state_dict,
        lambda: buffer.sample(wait=True, timeout=1), lambda: multiprocessing.reduction.ForkingPickler.dumps(buffer),
    ]  # fmt: skip
    texts = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        for number, call in enumerate(calls):
            try:
                call()
                texts.put(f"call {number} went through")
            except ForkError as error:
                assert isinstance(error, RuntimeError)
                texts.put(str(error))

    in_fork(child)
    buffer.extend(torch.arange(4))
    assert buffer[:].shape == (20,)
    return [texts.get() for _ in calls]


def parent_keeps_its_seat(pipe) -> dict:
    """A child that ends, in any way, never gives up the parent's lock on its member byte."""
    buffer = make()
    buffer.extend(pairs(0, 16))
    segment = buffer.storage.segment
    row, inc = segment.row, segment.inc
    in_fork(lambda: None)
    in_fork(exercise, buffer, 100)
    in_fork(lambda: sys.exit(0), expect=99)
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=exercise, args=(buffer, 200))
    process.start()
    process.join()
    pipe.send((buffer.path, row, inc))
    alive = pipe.recv()
    return {"alive": alive, "same": (segment.row, segment.inc) == (row, inc), "live": buffer.stats()["live_members"]}


def is_dead(pipe, path: str, row: int, inc: int) -> bool:
    from shmreplay import attach

    buffer = attach(path)
    exercise(buffer, 300)
    return buffer.storage.segment.members.is_dead(row, inc)


def leave_a_fork(pipe, how: str) -> None:
    """Hold budget and slots in flight, with a living forked child behind, until killed."""
    buffer = make(samples_per_insert=1.0)
    buffer.extend(pairs(0, 256))
    read, write = os.pipe()
    pid = os.fork() if how == "python" else ctypes.PyDLL(None).fork()
    if not pid:
        os.close(write)
        ctypes.CDLL(None).prctl(1, 0)
        if how == "python":
            os.read(read, 1)  # its parent is gone, but not told by whom
            ctypes.CDLL(None).pause()
        ctypes.CDLL(None).pause()
        os._exit(0)
    pipe.send((buffer.path, pid))
    armed = []

    def hook(event, _):
        if event == "shmreplay.copied" or (event == "shmreplay.gathered" and not armed):
            armed.append(True)
            if event == "shmreplay.gathered":
                buffer.extend(pairs(0, 16))
            else:
                pipe.send("holds")
                signal.pause()

    sys.addaudithook(hook)
    buffer.sample(256)


def go_on(pipe, path: str) -> dict:
    """Write over the slots that the dead one held, and sample what its budget was."""
    from shmreplay import attach

    buffer = attach(path)
    pipe.send("attached")
    pipe.recv()
    for i in range(8):
        buffer.extend(pairs(1000 + 32 * i, 1032 + 32 * i), timeout=PATIENCE)
    assert not torn(buffer.sample(512, wait=True, timeout=PATIENCE))
    buffer.storage.state.check_valid()
    stats = buffer.stats()
    return {name: stats[name] for name in ("sample_budget", "reserved_samples", "live_members", "samples_returned")}


def creating_while_forked(pipe) -> None:
    """Fork while another thread creates a buffer, then be killed; the child lives on and says so."""
    inside, go = threading.Event(), threading.Event()

    def hook(event, _):
        if event == "shmreplay.create.files" and not inside.is_set():
            inside.set()
            go.wait()

    sys.addaudithook(hook)
    threading.Thread(target=make, daemon=True).start()
    assert inside.wait(PATIENCE)
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(1, 0)
        pipe.send(os.getpid())
        signal.pause()
    signal.pause()
