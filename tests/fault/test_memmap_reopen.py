"""A folder that the user named keeps every committed record, whatever its processes died of."""

import json
import os
import shutil

import numpy as np
import pytest

import lives_leaks
import lives_memmap
from lives_memmap import CAPACITY
from nursery import NURSERY, home, segments  # noqa: F401
from shmreplay.shm import table


def same(seen: dict, before: dict) -> bool:
    """Whether a reopened buffer is what it was; deaths are counted."""
    seen, before = dict(seen), dict(before)
    seen["stats"], before["stats"] = ({k: v for k, v in s.items() if k != "dead_members"} for s in (seen["stats"], before["stats"]))
    return seen == before


@pytest.fixture
def folder(home):  # noqa: F811
    return os.path.join(os.environ["TMPDIR"], "records")


@pytest.mark.parametrize("end", ["return", "SIGKILL"])
def test_reopened_it_holds_what_was_there(folder, end):
    for low in (0, 40, 80):
        child = NURSERY.start(lives_memmap.write_and_leave, folder, low, low + 40, end)
        before = child.hear()
        child.ended()
        assert len(segments()) == (end == "SIGKILL") and os.path.exists(os.path.join(folder, "records"))
        NURSERY.run(lives_leaks.sweep)
        assert segments() == [] and os.path.exists(os.path.join(folder, "records"))
        assert same(NURSERY.run(lives_memmap.facts, folder), before)
    assert before["write_count"] == 120 and sorted(before["x"]) == list(range(56, 120))
    assert before["generations"] == [1] * 56 + [0] * 8


@pytest.mark.parametrize("size", [1, 7, 16])
def test_killed_in_the_middle_of_writes_again_and_again(folder, size):
    committed, generations = 0, np.full(CAPACITY, -1)
    for _ in range(8):
        child = NURSERY.start(lives_memmap.write_until_killed, folder, size)
        seen = child.hear()
        assert seen["write_count"] >= committed
        there = set(seen["x"])
        # one unfinished write may have been replacing the oldest records, and have used their generations up
        assert there >= set(range(max(0, seen["write_count"] - CAPACITY + size), seen["write_count"]))
        assert (np.array(seen["generations"]) >= generations).all()
        generations = np.array(seen["generations"])
        committed = max(child.hear() for _ in range(CAPACITY // size + 3))
        child.kill()


POINTS = ["shmreplay.reserved", "shmreplay.copying", "shmreplay.copied", "shmreplay.committed", "shmreplay.locked.entry",
          "shmreplay.locked.marked", "shmreplay.locked.whole", "shmreplay.locked.finishing"]  # fmt: skip


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_died_in_a_write(folder, point, swept):
    child = NURSERY.start(lives_memmap.die_at, folder, point, 40, 56)
    before = child.hear()
    assert child.ended() == -9
    if swept:
        NURSERY.run(lives_leaks.sweep)
        assert segments() == []
    seen = NURSERY.run(lives_memmap.facts, folder)
    kept = point in ("shmreplay.committed", "shmreplay.locked.whole")
    late = point == "shmreplay.locked.finishing" and seen["write_count"] == 56
    assert seen["x"][:40] == before["x"] and seen["generations"][:40] == before["generations"][:40]
    assert seen["write_count"] == len(seen["x"]) == (56 if kept or late else 40), (point, seen)
    assert seen["cursor"] == seen["write_count"]
    assert NURSERY.run(lives_memmap.use, folder)["len"] == 10


@pytest.mark.parametrize("point", ["shmreplay.create.folder", "shmreplay.create.header", "shmreplay.created",
                                   "shmreplay.scratch.marking"])  # fmt: skip
def test_who_reopens_dies(folder, point):
    child = NURSERY.start(lives_memmap.write_and_leave, folder, 0, 90, "SIGKILL")
    before = child.hear()
    child.ended()
    for _ in range(3):
        assert NURSERY.start(lives_memmap.die_opening, folder, point).ended() == -9
        NURSERY.run(lives_leaks.sweep)
    assert same(NURSERY.run(lives_memmap.facts, folder), before)


@pytest.mark.parametrize("point", ["shmreplay.create.folder", "shmreplay.create.header", "shmreplay.created",
                                   "shmreplay.scratch.marking", "shmreplay.layout.begun", "shmreplay.layout.written",
                                   "shmreplay.layout.renamed", "shmreplay.layout.created"])  # fmt: skip
def test_who_opens_first_dies(folder, point):
    assert NURSERY.start(lives_memmap.die_opening, folder, point).ended() == -9
    assert NURSERY.run(lives_memmap.use, folder)["len"] == 10
    assert not [name for name in os.listdir(folder) if name.endswith(".partial")]


@pytest.mark.parametrize("point", ["shmreplay.freeing", "shmreplay.freed", "shmreplay.saved", "shmreplay.unlinking"])
def test_who_saves_the_counters_dies(folder, point):
    child = NURSERY.start(lives_memmap.write_and_leave, folder, 0, 90, "SIGKILL")
    before = child.hear()
    child.ended()
    assert NURSERY.start(lives_leaks.die_at, point, lives_leaks.sweep).ended() == -9
    assert same(NURSERY.run(lives_memmap.facts, folder), before)
    NURSERY.run(lives_leaks.sweep)
    assert same(NURSERY.run(lives_memmap.facts, folder), before) and segments() == []


def test_counters_saved_by_one_sweep_are_not_overwritten_by_a_later_one(folder):
    child = NURSERY.start(lives_memmap.write_and_leave, folder, 0, 90, "SIGKILL")
    before = child.hear()
    child.ended()
    assert NURSERY.start(lives_leaks.die_at, "shmreplay.unlinking", lives_leaks.sweep).ended() == -9
    (left,) = segments()
    os.remove(os.path.join(os.environ["SHMREPLAY_DIR"], f"shmreplay-{os.getuid()}", left, "control"))
    NURSERY.run(lives_leaks.sweep)
    assert segments() == [] and same(NURSERY.run(lives_memmap.facts, folder), before)


@pytest.mark.parametrize("how", ["slots", "budget"])
def test_who_waited_in_a_queue_when_all_died_holds_nobody_up(folder, how):
    holder = NURSERY.start(lives_memmap.hold_slots, folder)
    assert holder.hear() == "holds"
    waiters = [NURSERY.start(lives_memmap.block, folder, how) for _ in range(2)] if how == "slots" else []
    for waiter in waiters:
        assert waiter.hear() == "waits"
    for child in [*waiters, holder]:
        child.kill()
    assert NURSERY.run(lives_memmap.use, folder)["len"] == 10


def test_a_buffer_that_was_shut_down_everywhere_opens_again(folder):
    NURSERY.run(lives_memmap.close_everywhere, folder)
    assert NURSERY.run(lives_memmap.use, folder)["len"] == 10


def test_reopened_more_often_than_there_are_ledgers(folder):
    for i in range(1, table.N_LEDGERS + 3):
        assert NURSERY.run(lives_memmap.several, folder, 2) == [(i, 2 * i), (i, 4 * i)]


def test_a_used_folder_needs_existsok_and_its_size(folder):
    NURSERY.run(lives_memmap.facts, folder)
    kind, text = NURSERY.run(lives_memmap.refusal, folder, CAPACITY, False)
    assert kind == "FileExistsError" and "existsok=True" in text and folder in text
    kind, text = NURSERY.run(lives_memmap.refusal, folder, CAPACITY + 1, True)
    assert kind == "ValueError" and str(CAPACITY) in text and str(CAPACITY + 1) in text
    assert segments() == [] and NURSERY.run(lives_memmap.use, folder)["len"] == 10


def test_a_folder_in_use_names_attach(folder):
    owner = NURSERY.start(lives_leaks.own_until_told, folder)
    assert owner.hear() == folder
    for existsok in (True, False):
        kind, text = NURSERY.run(lives_memmap.refusal, folder, CAPACITY, existsok)
        assert kind == "FileExistsError" and ("attach" in text or not existsok)
    user = NURSERY.start(lives_leaks.attach_until_told, folder, True)
    assert user.hear() == "attached"
    owner.kill()
    assert NURSERY.run(lives_memmap.refusal, folder, CAPACITY, True)[0] == "FileExistsError"
    user.tell()
    assert user.finish() == list(range(40))
    assert NURSERY.run(lives_memmap.facts, folder)["x"] == list(range(40))


@pytest.mark.parametrize("used", [False, True])
def test_of_several_that_open_a_folder_at_once_one_has_it(folder, used):
    for _ in range(5):
        if used:
            NURSERY.run(lives_memmap.facts, folder)
        children = [NURSERY.start(lives_memmap.race, folder, used) for _ in range(4)]
        for child in children:
            child.tell()
        said = [child.hear() for child in children]
        assert said.count("has it") == 1, said
        assert sum(word[0] == "done" and word[1][0] == "FileExistsError" for word in said if word != "has it") == 3, said
        winner = children[said.index("has it")]
        winner.tell()
        assert winner.finish() == ("", "")
        shutil.rmtree(folder)


def test_after_a_power_loss_the_checkpoint_is_named(folder):
    child = NURSERY.start(lives_memmap.write_and_leave, folder, 0, 90, "SIGKILL")
    child.hear()
    child.ended()
    shutil.rmtree(os.path.join(os.environ["SHMREPLAY_DIR"], f"shmreplay-{os.getuid()}"))
    kind, text = NURSERY.run(lives_memmap.refusal, folder, CAPACITY, True)
    assert kind == "VersionError" and "checkpoint" in text and "power loss" in text
    assert NURSERY.run(lives_memmap.refusal, folder, CAPACITY, False)[0] == "FileExistsError"


def test_a_folder_that_was_left_in_order_survives_a_reboot(folder):
    before = NURSERY.run(lives_memmap.facts, folder)
    marker = os.path.join(folder, "shmreplay.json")
    with open(marker) as file:
        content = json.load(file)
    assert content["segment"] is None
    with open(marker, "w") as file:
        json.dump(content | {"boot_id": content["boot_id"] ^ 1}, file)
    saved = np.memmap(os.path.join(folder, "control"), np.int64, "r+")
    saved[table.H_BOOT_ID] ^= 1
    saved.flush()
    assert same(NURSERY.run(lives_memmap.facts, folder), before)


def test_a_folder_of_another_format_version(folder):
    NURSERY.run(lives_memmap.facts, folder)
    saved = np.memmap(os.path.join(folder, "control"), np.int64, "r+")
    saved[table.H_VERSION] += 1
    saved.flush()
    kind, text = NURSERY.run(lives_memmap.refusal, folder, CAPACITY, True)
    assert kind == "VersionError" and f"version {table.FORMAT_VERSION + 1}" in text and segments() == []
