"""Nothing is left behind: no memory, no file, no descriptor, whatever way the processes ended."""

import os
import subprocess
import sys

import pytest

import lives_leaks
from nursery import NURSERY, ROOT, home, scratches, segments  # noqa: F401

ENDINGS = {"os._exit": 3, "sys.exit": 4, "exception": 0, "SIGTERM": -15, "SIGKILL": -9, "return": 0}


def nothing_is_left() -> bool:
    """Whether no segment is left once one more buffer was created, and none of our record folders."""
    return NURSERY.run(lives_leaks.create_once) == [] and segments() == [] and scratches() == []


def test_a_thousand_buffers_in_one_process(home):  # noqa: F811
    seen = NURSERY.run(lives_leaks.make_and_drop, 1000, timeout=200)
    fds, mappings = (late - early for early, late in zip(seen["early"], seen["late"]))
    assert fds == 0 and mappings <= 8, seen  # torch and the allocator map as they like, a few at most
    assert segments() == [] and scratches() == []


def test_two_hundred_owners_killed(home):  # noqa: F811
    for i in range(200):
        child = NURSERY.start(lives_leaks.own_and_end, "SIGKILL", "ours" if i % 4 == 0 else None)
        assert child.ended() == -9
        assert len(segments()) <= 1 and len(scratches()) <= 1  # each creation sweeps what the last one left
    assert nothing_is_left()


@pytest.mark.parametrize("scratch", [None, "ours"])
@pytest.mark.parametrize("how", ENDINGS)
def test_an_owner_that_ends(home, how, scratch):  # noqa: F811
    child = NURSERY.start(lives_leaks.own_and_end, how, scratch)
    path = child.hear()
    assert child.ended() == ENDINGS[how]
    killed = how in ("os._exit", "SIGTERM", "SIGKILL")
    assert os.path.isdir(path) == killed  # an interpreter that ends by itself frees at once
    assert nothing_is_left()


def test_many_that_died_at_once(home):  # noqa: F811
    children = [NURSERY.start(lives_leaks.own_until_told, "ours" if i % 2 else None) for i in range(8)]
    for child in children:
        child.hear()
    assert len(segments()) == 8 and len(scratches()) == 4
    for child in children:
        assert child.kill() == -9
    assert len(segments()) == 8
    assert nothing_is_left()


def test_gc_on_the_command_line(home):  # noqa: F811
    dead = [NURSERY.start(lives_leaks.own_until_told, scratch) for scratch in (None, "ours")]
    living = NURSERY.start(lives_leaks.own_until_told, "ours")
    paths = [child.hear() for child in [*dead, living]]
    for child in dead:
        child.kill()
    command = [sys.executable, "-m", "shmreplay", "gc"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("2 buffers of dead processes freed in " + home), done
    assert segments() == [os.path.basename(paths[2])] and len(scratches()) == 1
    living.tell()
    assert living.finish() == 32
    assert segments() == [] and scratches() == []


def test_gc_where_no_buffer_was_ever_made(home):  # noqa: F811
    assert NURSERY.run(lives_leaks.sweep) == 0


# -- what lives is never swept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scratch", [None, "ours"])
def test_a_buffer_of_another_process_is_not_swept(home, scratch):  # noqa: F811
    living = NURSERY.start(lives_leaks.own_until_told, scratch)
    path = living.hear()
    assert NURSERY.run(lives_leaks.sweep) == 0 and NURSERY.run(lives_leaks.create_once) == [os.path.basename(path)]
    living.tell()
    assert living.finish() == 32 and nothing_is_left()


POINTS = ["shmreplay.create.folder", "shmreplay.create.config", "shmreplay.create.files", "shmreplay.create.claimed",
          "shmreplay.create.header", "shmreplay.sit", "shmreplay.seated", "shmreplay.created"]  # fmt: skip


@pytest.mark.parametrize("scratch", [None, "ours"])
@pytest.mark.parametrize("point", POINTS)
def test_a_buffer_in_creation_is_not_swept(home, point, scratch):  # noqa: F811
    creating = NURSERY.start(lives_leaks.stop_at, point, scratch)
    assert creating.hear() == point
    sweeping = NURSERY.start(lives_leaks.sweep)
    if point == "shmreplay.created":
        assert sweeping.finish() == 0
    else:
        assert not sweeping.pipe.poll(0.2)  # waits until the creation is over
    creating.tell()
    while (said := creating.hear()) == point:
        creating.tell()
    assert said == ("done", 32)
    assert creating.ended() == 0
    if point != "shmreplay.created":
        assert sweeping.finish() <= 1
    assert nothing_is_left()


@pytest.mark.parametrize("scratch", [None, "ours"])
@pytest.mark.parametrize("point", POINTS)
def test_a_creator_that_dies_on_the_way_leaves_nothing(home, point, scratch):  # noqa: F811
    assert NURSERY.start(lives_leaks.die_at, point, lives_leaks.own_until_told, scratch).ended() == -9
    assert len(segments()) == 1
    assert nothing_is_left()


@pytest.mark.parametrize("use", [True, False])
def test_an_attached_process_keeps_the_buffer_when_its_creator_dies(home, use):  # noqa: F811
    creator = NURSERY.start(lives_leaks.own_until_told)
    path = creator.hear()
    other = NURSERY.start(lives_leaks.attach_until_told, path, use)
    assert other.hear() == "attached"
    creator.kill()
    assert NURSERY.run(lives_leaks.sweep) == 0
    other.tell()
    assert other.finish() == list(range(40)) and nothing_is_left()


def test_a_forked_child_that_used_the_buffer_keeps_it_when_its_creator_dies(home):  # noqa: F811
    creator = NURSERY.start(lives_leaks.orphan)
    path = creator.hear()
    assert creator.ended() == -9 and os.path.isdir(path)
    assert NURSERY.run(lives_leaks.create_once) == [os.path.basename(path)]
    creator.tell()
    assert creator.hear() == list(range(40))
    with pytest.raises(EOFError):
        creator.hear()
    assert nothing_is_left()


FREEING = ["shmreplay.freeing", "shmreplay.freed", "shmreplay.unlinking"]


@pytest.mark.parametrize("scratch", [None, "ours"])
@pytest.mark.parametrize("point", FREEING)
def test_a_sweep_that_dies_is_finished_by_the_next(home, point, scratch):  # noqa: F811
    NURSERY.start(lives_leaks.own_and_end, "SIGKILL", scratch).ended()
    assert NURSERY.start(lives_leaks.die_at, point, lives_leaks.sweep).ended() == -9
    assert nothing_is_left()


@pytest.mark.parametrize("missing", [["control"], ["config.json"], ["members"], ["control", "config.json", "records"]])
def test_a_folder_half_removed_is_removed(home, missing):  # noqa: F811
    owner = NURSERY.start(lives_leaks.own_until_told)
    path = owner.hear()
    owner.kill()
    for name in missing:
        os.remove(os.path.join(path, name))
    assert nothing_is_left()


def test_records_of_an_earlier_boot_are_removed(home):  # noqa: F811
    import json

    from shmreplay.shm.folders import own_scratch

    owner = NURSERY.start(lives_leaks.own_until_told, "ours")
    path = owner.hear()
    owner.kill()
    subprocess.run(["rm", "-r", path], check=True)  # as a power loss does to a tmpfs
    NURSERY.run(lives_leaks.sweep)
    (name,) = scratches()  # of this boot: its segment may be where this process cannot see it
    marker = os.path.join(own_scratch(), name, "shmreplay.json")
    with open(marker) as file:
        content = json.load(file)
    with open(marker, "w") as file:
        json.dump(content | {"boot_id": content["boot_id"] + 1}, file)
    assert nothing_is_left()


# -- what a buffer costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, lock", [("tensor", "pthread"), ("memmap", "pthread"), ("tensor", "flock")])
def test_descriptors_and_memory_of_an_attached_buffer(home, kind, lock, record_property):  # noqa: F811
    n = 20
    owner = NURSERY.start(lives_leaks.own_many, kind, lock, n + 1)
    user = NURSERY.start(lives_leaks.costs, n)
    user.tell(owner.hear())
    each = user.finish()
    record_property("each", each)
    print(f"{kind}, {lock}: {each['fds']} descriptors, {each['nbytes'] / 2**20:.2f} MiB")
    owner.tell()
    assert owner.ended() == 0
    assert each["fds"] <= 4 and each["nbytes"] <= 6 * 2**20, each


def test_attaching_without_a_free_descriptor_is_an_error_and_nothing_more(home):  # noqa: F811
    owner = NURSERY.start(lives_leaks.own_until_told)
    assert NURSERY.run(lives_leaks.use_without_descriptors, owner.hear()) == "Too many open files"
    owner.tell()
    assert owner.finish() == 40 and nothing_is_left()
