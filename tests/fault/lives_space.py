"""What children do on a small file system. None of it may end in SIGBUS."""

import os
import sys

import numpy as np
import torch

import shmreplay
from lives_common import pairs, torn, whole
from shmreplay import LazyMemmapStorage, LazyTensorStorage, SpaceError, TensorDictReplayBuffer

WIDTH = 256  # float32: records of about 1 KiB
MIB = 1 << 20


def room() -> int:
    stat = os.statvfs(os.environ["SHMREPLAY_DIR"])
    return stat.f_bavail * stat.f_frsize


def fill(leave: int = 0) -> str:
    """Take what is left of the file system but for ``leave`` bytes, as somebody else would."""
    path = os.path.join(os.environ["SHMREPLAY_DIR"], "filler")
    with open(path, "ab") as file:
        while room() > leave:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, max(1, min(MIB, room() - leave)))
            except OSError:
                break
    return path


def refused(call, *args) -> str:
    """The text of the SpaceError that the call must raise."""
    try:
        call(*args)
    except SpaceError as error:
        assert isinstance(error, OSError) and error.errno, error
        return str(error)
    raise AssertionError("nothing was refused")


def make(capacity: int, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), shared=True, **kwargs)


def never_fits(pipe) -> str:
    """The first write of records that can never fit, then of records that do."""
    buffer = make(1_000_000)
    before = whole_of_huge(buffer)
    text = refused(buffer.extend, pairs(0, 4, WIDTH))
    assert whole_of_huge(buffer) == before and not buffer.storage.initialized
    assert not [name for name in os.listdir(buffer.path) if name.endswith(".partial") or name == "records"]
    small = shmreplay.ReplayBuffer(storage=LazyTensorStorage(1000), shared=True)
    small.extend(torch.arange(1000))
    assert small[:].tolist() == list(range(1000))
    return text


def whole_of_huge(buffer) -> tuple:
    return len(buffer), buffer.write_count, buffer.stats()["storage_size"], buffer.storage.cursor


def filled_between_claims(pipe, leave: int) -> str:
    """Others fill the file system while the ring grows: the write is refused, the rest goes on."""
    buffer = make(40_000, batch_size=8)
    buffer.extend(pairs(0, 1000, WIDTH))
    filler = fill(leave)
    n, text = len(buffer), ""
    while not text:
        before = whole(buffer)
        try:
            buffer.extend(pairs(n, n + 500, WIDTH))
            n += 500
        except SpaceError as error:
            text = str(error)
    assert whole(buffer) == before
    buffer.writer.write_at(torch.arange(100), pairs(0, 100, WIDTH))
    assert not torn(buffer.sample()) and len(buffer) == n and buffer.write_count == n + 100
    refused(buffer.extend, pairs(0, 8000, WIDTH))
    os.remove(filler)
    buffer.extend(pairs(n, n + 500, WIDTH))
    assert buffer[:]["x"].tolist() == list(range(n + 500))
    return text


def full_ring_goes_on(pipe) -> None:
    """Once a ring has its room, a full file system does not touch it; any call, from here and from others."""
    buffer = make(2000, batch_size=32, samples_per_insert=4)
    buffer.extend(pairs(0, 2000, WIDTH))
    fill()
    pid = os.fork()
    for i in range(20):
        buffer.extend(pairs(2000 + 100 * i, 2100 + 100 * i, WIDTH))
        assert not torn(buffer.sample(wait=True, timeout=30))
        buffer.writer.write_at(torch.tensor([5, 7, 1999]), pairs(0, 3, WIDTH))
    buffer.storage.get(slice(None))
    if not pid:
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    state = buffer.state_dict()
    buffer.empty()
    buffer.extend(pairs(0, 100, WIDTH))
    buffer.load_state_dict(state)
    assert len(buffer) == 2000 and not torn(buffer[:])
    buffer.share(False)
    assert len(buffer) == 2000 and not torn(buffer[:])


def reads_where_nothing_was_written(pipe) -> None:
    """Reading stamps or records that nobody claimed must not touch them: a read of a hole takes a page too."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(700_000), shared=True, batch_size=8,
        writer=shmreplay.TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    fill()
    for call in (buffer.sample, lambda: buffer[0], lambda: buffer[:]):
        try:
            call()
            raise AssertionError("an empty buffer gave a record")
        except (RuntimeError, IndexError):
            pass
    os.remove(fill())
    buffer.extend(pairs(0, 100))
    fill()
    far = torch.tensor([699_999, 400_000, 100_000])
    assert buffer.writer.generations_of(far).tolist() == [-1] * 3
    assert 699_999 not in buffer.storage and 99 in buffer.storage
    for index in (699_999, far, [0, 400_000]):
        try:
            buffer[index]
            raise AssertionError("a slot without a record gave one")
        except IndexError:
            pass
    assert buffer[:]["x"].tolist() == list(range(100))
    assert sum(1 for _ in buffer.storage) == 100
    buffer.state_dict()
    buffer.storage.generations(np.arange(700_000))
    buffer.stats()
    buffer.empty()
    assert not buffer.can_sample() and buffer.writer.generations_of(far).tolist() == [-1] * 3


def creation(pipe, leave: int) -> str:
    """A buffer that cannot be created leaves nothing behind."""
    first = make(8)
    first.extend(pairs(0, 8))
    fill(leave)
    before = sorted(os.listdir(os.path.dirname(first.path)))
    text = refused(make, 8)
    assert sorted(os.listdir(os.path.dirname(first.path))) == before
    first.extend(pairs(0, 8))
    return text


def creation_first(pipe) -> str:
    """Not even the folder of the segments is there, and no room for it."""
    fill()
    return refused(make, 8)


def sharing(pipe, n: int, leave: int, at: str) -> str:
    """``share()`` that does not fit leaves the unshared buffer whole; with room it succeeds."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), batch_size=8)
    other = TensorDictReplayBuffer(storage=buffer.storage, batch_size=8, samples_per_insert=3)
    buffer.extend(pairs(0, n, WIDTH))
    other.sample()
    filler = []

    def hook(event, _):
        if event == at and not filler:
            filler.append(fill(leave))

    sys.addaudithook(hook)
    before = whole(buffer), whole(other)
    if at == "now":
        filler.append(fill(leave))
    text = refused(buffer.share)
    assert not buffer.shared and buffer.path is None and not other.shared
    assert (whole(buffer), whole(other)) == before
    home = os.path.join(os.environ["SHMREPLAY_DIR"], f"shmreplay-{os.getuid()}")
    assert not [name for name in os.listdir(home) if not name.startswith(".")], os.listdir(home)
    buffer.extend(pairs(n, n + 8, WIDTH))
    assert not torn(buffer.sample()) and not torn(other.sample())
    os.remove(filler[0])
    before = whole(buffer), whole(other)
    buffer.share()
    assert (whole(buffer), whole(other)) == before and buffer.shared and other.shared
    return text


def too_large_to_share(pipe) -> str:
    """80 MiB of records do not fit into 64."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(80_000))
    buffer.extend(pairs(0, 80_000, WIDTH))
    text = refused(buffer.share)
    assert not buffer.shared and len(buffer) == 80_000 and not torn(buffer.sample(1000))
    return text


def second_ledger(pipe, leave: int) -> str:
    """A second buffer on a shared storage needs a ledger: refused where it does not fit, and then it does."""
    first = make(1000, batch_size=8)
    first.extend(pairs(0, 1000))
    filler = fill(leave)
    before = whole(first)
    text = refused(lambda: TensorDictReplayBuffer(storage=first.storage, samples_per_insert=1.0))
    assert whole(first) == before
    assert not torn(first.sample())
    os.remove(filler)
    second = TensorDictReplayBuffer(storage=first.storage, samples_per_insert=1.0, batch_size=8)
    assert not torn(second.sample()) and second.stats()["samples_returned"] == 8
    return text


def disk_is_full(pipe, disk: str) -> list[str]:
    """Records on a small disk: too many for it, and a disk that others fill."""
    storage = LazyMemmapStorage(1_000_000, scratch_dir=os.path.join(disk, "a"))
    buffer = TensorDictReplayBuffer(storage=storage, shared=True)
    texts = [refused(buffer.extend, pairs(0, 4, WIDTH))]
    assert len(buffer) == buffer.write_count == 0
    storage = LazyMemmapStorage(40_000, scratch_dir=os.path.join(disk, "b"))
    buffer = TensorDictReplayBuffer(storage=storage, shared=True)
    buffer.extend(pairs(0, 1000, WIDTH))
    os.environ["SHMREPLAY_DIR"], home = disk, os.environ["SHMREPLAY_DIR"]
    filler = fill()
    os.environ["SHMREPLAY_DIR"] = home
    before, n = whole(buffer), len(buffer)
    texts.append(refused(buffer.extend, pairs(n, n + 8000, WIDTH)))
    assert whole(buffer) == before
    buffer.writer.write_at(torch.arange(10), pairs(0, 10, WIDTH))
    os.remove(filler)
    buffer.extend(pairs(n, n + 8000, WIDTH))
    assert buffer[:]["x"].tolist() == list(range(9000))
    return texts


def leave_a_full_disk(pipe, disk: str) -> str:
    """The last process ends while the disk has no room for the counters: they stay in memory until it has."""
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=os.path.join(disk, "c")), shared=True)
    buffer.extend(pairs(0, 150))
    os.environ["SHMREPLAY_DIR"], home = disk, os.environ["SHMREPLAY_DIR"]
    filler = fill()
    os.environ["SHMREPLAY_DIR"] = home
    return filler


def reopen(pipe, folder: str, capacity: int) -> tuple:
    storage = LazyMemmapStorage(capacity, scratch_dir=folder, existsok=True)
    buffer = TensorDictReplayBuffer(storage=storage, shared=True)
    return buffer.write_count, sorted(buffer[:]["x"].tolist())


def begin() -> TensorDictReplayBuffer:
    """A buffer with a few records, as soon as there is room for it."""
    while True:
        try:
            buffer = make(30_000, batch_size=16)
            buffer.extend(pairs(0, 100, WIDTH))
            return buffer
        except SpaceError:
            pass


def write_while_others_fill(pipe, seconds: float) -> tuple[int, int]:
    """Write and sample while the room comes and goes; (writes that were refused, writes that were not)."""
    import time

    buffer = begin()
    refusals = written = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        n = buffer.write_count
        try:
            buffer.extend(pairs(n, n + 200, WIDTH))
            written += 1
        except SpaceError:
            refusals += 1
            assert buffer.write_count == n
        assert not torn(buffer.sample())
        if len(buffer) == 30_000:
            del buffer
            buffer = begin()
    return refusals, written


def fill_and_empty(pipe) -> None:
    while not pipe.poll(0):
        path = fill(64 << 10)
        os.remove(path)
