"""A full file system or memory is an error that says what to do; never SIGBUS, and nothing is lost."""

import errno
import os
import subprocess
import tempfile

import pytest

import lives_space
from nursery import NURSERY, home  # noqa: F401
from shmreplay import LazyTensorStorage, ReplayBuffer, SpaceError
from shmreplay.shm import space

MIB = 1 << 20


@pytest.fixture
def mounted():
    """Mounts small tmpfs; skips where that is not permitted."""
    places = []

    def mount(options: str) -> str:
        place = tempfile.mkdtemp(prefix="shmreplay-test-")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            os.rmdir(place)
            pytest.skip(f"mounting a small tmpfs needs root here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)
        os.rmdir(place)


@pytest.fixture
def small(mounted, monkeypatch):
    """A machine with 64 MiB of shared memory."""
    place = mounted("size=64m")
    monkeypatch.setenv("SHMREPLAY_DIR", place)
    return place


def names_need_room_and_remedies(text: str) -> bool:
    need, _, rest = text.partition(" bytes needed, ")
    room, _, rest = rest.partition(" bytes available at ")
    figures = need.split()[-1], room
    assert all(figure.replace(",", "").isdigit() for figure in figures), text
    return all(word in text for word in ("no space for", "--shm-size", "max_size", "SHMREPLAY_DIR", "LazyMemmapStorage"))


def test_records_that_never_fit_are_refused_at_the_first_write(small):
    text = NURSERY.run(lives_space.never_fits)
    assert names_need_room_and_remedies(text) and small in text and "1,000,000 records" in text


@pytest.mark.parametrize("leave", [0, 4 << 10, 5 * MIB])
def test_a_write_that_does_not_fit_loses_nothing_and_the_others_go_on(small, leave):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.filled_between_claims, leave))


def test_a_ring_that_has_its_room_does_not_notice_a_full_file_system(small):
    NURSERY.run(lives_space.full_ring_goes_on)


def test_reading_what_was_never_written_takes_no_room(small):
    NURSERY.run(lives_space.reads_where_nothing_was_written)


@pytest.mark.parametrize("leave", [0, 4 << 10, 16 << 10, 300 << 10])
def test_a_buffer_that_cannot_be_created_leaves_nothing(small, leave):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.creation, leave))


def test_creation_where_not_even_the_folder_exists(small):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.creation_first))


def test_no_more_files(mounted, monkeypatch):
    monkeypatch.setenv("SHMREPLAY_DIR", mounted("size=64m,nr_inodes=14"))
    assert names_need_room_and_remedies(NURSERY.run(lives_space.creation, MIB))


@pytest.mark.parametrize(
    "at, leave",
    [
        ("now", 0), ("now", 200 << 10), ("now", 2 * MIB), ("now", 6 * MIB), ("shmreplay.share.copied", 0),
        ("shmreplay.layout.created", 0), ("shmreplay.layout.created", 2 * MIB), ("shmreplay.share.filled", 0),
    ],
)  # fmt: skip
def test_sharing_that_does_not_fit_leaves_the_unshared_buffer_whole(small, at, leave):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.sharing, 8000, leave, at))


def test_sharing_more_than_there_can_be(small):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.too_large_to_share))


@pytest.mark.parametrize("leave", [0, 8 << 10])
def test_a_second_buffer_on_a_storage_needs_room_for_its_ledger(small, leave):
    assert names_need_room_and_remedies(NURSERY.run(lives_space.second_ledger, leave))


def test_a_full_disk_under_memory_mapped_records(home, mounted):  # noqa: F811
    for text in NURSERY.run(lives_space.disk_is_full, mounted("size=64m")):
        assert names_need_room_and_remedies(text)


def test_counters_that_the_disk_has_no_room_for_stay_until_it_has(home, mounted):  # noqa: F811
    filler = NURSERY.run(lives_space.leave_a_full_disk, mounted("size=8m"))
    folder = os.path.join(os.path.dirname(filler), "c")
    with pytest.raises(OSError) as caught:
        NURSERY.run(lives_space.reopen, folder, 100)
    assert caught.value.errno == errno.ENOSPC
    os.remove(filler)
    assert NURSERY.run(lives_space.reopen, folder, 100) == (150, list(range(50, 150)))


def test_room_that_comes_and_goes(small):
    filler = NURSERY.start(lives_space.fill_and_empty)
    refusals, written = NURSERY.run(lives_space.write_while_others_fill, 4.0)
    filler.tell()
    filler.finish()
    assert refusals and written, (refusals, written)


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Files as the kernel shows them, of a machine with 1,000 kB available and no cgroup."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".", 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    (tmp_path / "meminfo").write_text("MemTotal: 5000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(space, "_MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(space, "_OWN_CGROUPS", str(tmp_path / "own"))
    monkeypatch.setattr(space, "_CGROUPS", str(tmp_path / "cgroup"))

    def cgroup(where: str, limit: str, used: int, cache: int = 0, version: int = 2):
        place = tmp_path / "cgroup" / where
        place.mkdir(parents=True, exist_ok=True)
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        (place / names[0]).write_text(f"{limit}\n")
        (place / names[1]).write_text(f"{used}\n")
        total = "total_" if version == 1 else ""
        (place / "memory.stat").write_text(f"anon 7\nfile {cache}\n{total}inactive_file {cache}\n{total}active_file 0\n")

    def own(text: str):
        (tmp_path / "own").write_text(text)

    return cgroup, own


def test_memory_is_what_the_machine_has_available(machine):
    assert space.free_memory() == 1000 * 1024


def test_memory_without_a_limit(machine):
    machine[0]("", "max", 10**9)
    assert space.free_memory() == 1000 * 1024


def test_memory_within_the_limit_of_a_container(machine):
    machine[0]("", "500000", 200_000)
    assert space.free_memory() == 300_000


def test_the_file_cache_of_a_container_gives_way(machine):
    machine[0]("", "500000", 499_000, cache=400_000)
    assert space.free_memory() == 401_000


def test_the_tightest_of_nested_groups_counts(machine):
    cgroup, own = machine
    own("0::/user.slice/job.scope\n")
    cgroup("user.slice", "400000", 100_000)
    cgroup("user.slice/job.scope", "max", 50_000)
    assert space.free_memory() == 300_000
    cgroup("user.slice/job.scope", "60000", 50_000)
    assert space.free_memory() == 10_000


def test_a_group_of_the_first_version(machine):
    cgroup, own = machine
    own("4:cpu:/x\n3:memory:/docker/abc\n")
    cgroup("memory/docker/abc", "700000", 600_000, cache=50_000, version=1)
    assert space.free_memory() == 150_000


def test_a_group_over_its_limit_has_no_room(machine):
    machine[0]("", "1000", 2000)
    assert space.free_memory() == 0


def test_unknown_memory_is_no_limit(machine, monkeypatch):
    monkeypatch.setattr(space, "_MEMINFO", "/nonexistent")
    assert space.free_memory() is None
    space.check_memory("/", 1 << 60, "anything")


def test_a_write_beyond_free_memory_is_refused(home, monkeypatch):  # noqa: F811
    import torch

    rb = ReplayBuffer(storage=LazyTensorStorage(100_000), shared=True)
    rb.extend(torch.zeros(10, 512))
    monkeypatch.setattr(space, "free_memory", lambda: 4096)
    with pytest.raises(SpaceError) as caught:
        rb.extend(torch.zeros(20_000, 512))
    assert caught.value.errno == errno.ENOMEM and names_need_room_and_remedies(str(caught.value))
    assert len(rb) == rb.write_count == 10 and rb[:].shape == (10, 512)
    monkeypatch.undo()
    rb.extend(torch.zeros(20_000, 512))
    assert len(rb) == 20_010
