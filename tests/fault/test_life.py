"""One death and one interruption at each named point of creating, sharing, attaching, leaving, freeing and sweeping."""

import os

import life_steps
import pytest
import scenes
import victims

import shmreplay

_MOST = 400  # points of one step; only guards
_OFTEN = {"locked.acquired", "locked.saved", "locked.begun", "locked.changed", "locked.finishing"}
# what a step must pass on its way, so that the loops below meet it
MUST_PASS = {
    "create": {
        "create.folder", "create.config", "create.files", "create.claimed", "create.header", "created", "sitting",
        "sit", "locked.register.number", "locked.register.row", "locked.register.inc", "seated", "leave", "left",
        "freeing", "freed", "unlinking", "unlinked",
    },
    "share": {"share.copied", "share.bound", "share.filled"},
    "attach": {"sitting", "sit", "seated", "leave", "left"},
    "memmap": {"scratch.made"},
    "named_folder": {"scratch.marking", "saved"},
}  # fmt: skip


def _argument(step: str, named: str, rb):
    return {"named_folder": named, "attach": rb.path}.get(step)


def _trace(zygote, step: str, argument) -> list[str]:
    victim = zygote.victim(victims.trace_life, step, argument)
    assert victim.recv() == "here"
    victim.send("go")
    names = victim.recv()
    victim.wait_end()
    return names


def _indices(names: list[str]) -> list[int]:
    """Each point, but of those that every locked step passes only the first two."""
    passed, chosen = {}, []
    for index, name in enumerate(names):
        passed[name] = passed.get(name, 0) + 1
        if passed[name] <= (2 if name in _OFTEN or name.startswith("locked.entry") else 3):
            chosen.append(index)
    return chosen


@pytest.mark.parametrize("step", life_steps.STEPS)
def test_death(zygote, own_folder, step, tmp_path):
    """After the next creation nothing of the dead is left, and what they left does not hinder."""
    rb = scenes.make(life_steps.KINDS)
    argument = _argument(step, str(tmp_path / "traced"), rb)
    names = _trace(zygote, step, argument)
    assert MUST_PASS[step] <= set(names)
    for index in _indices(names):
        rb = scenes.make(life_steps.KINDS)
        kept = set(life_steps.segments(own_folder))
        argument = _argument(step, str(tmp_path / f"named-{index}"), rb)
        victim = zygote.victim(victims.die_in_life, step, argument, index)
        assert victim.recv() == names[index]
        victim.wait_end()
        other = scenes.make(life_steps.KINDS, written=0)
        assert set(life_steps.segments(own_folder)) <= kept | {os.path.basename(other.path)}, names[index]
        del other
        if step == "attach":
            scenes.next_call(rb)
            rb.extend(scenes.batch(0, 2), timeout=5.0)
            assert rb.stats()["live_members"] == 1
        if step == "named_folder":
            _check_reopens(argument, names[index])
        rb._storage.state.check_valid()


def _check_reopens(folder: str, name: str) -> None:
    """The folder that the user named opens again, with no half-made files beside the records."""
    life_steps.named_folder(folder)
    left = [file for file in os.listdir(folder) if "partial" in file]
    assert left == [], name


def test_temporary_record_folders_of_the_dead_are_swept(zygote):
    from shmreplay.shm.folders import own_scratch

    before = set(os.listdir(own_scratch())) if os.path.isdir(own_scratch()) else set()
    names = _trace(zygote, "memmap", None)
    for index in _indices(names):
        victim = zygote.victim(victims.die_in_life, "memmap", None, index)
        victim.recv()
        victim.wait_end()
    scenes.make(life_steps.KINDS, written=0)
    life_steps.memmap()
    left = set(os.listdir(own_scratch())) - before
    assert {name for name in left if os.path.isdir(os.path.join(own_scratch(), name))} == set()


@pytest.mark.parametrize("step", ["create", "attach", "memmap"])
def test_interruption(zygote, step):
    """No descriptor is left, and the same step works at once."""
    rb = scenes.make(life_steps.KINDS)
    argument = _argument(step, None, rb)
    for index in _indices(_trace(zygote, step, argument)):
        victim = zygote.victim(victims.interrupted_in_life, step, argument, index)
        name, leaked = victim.recv()
        assert victim.recv() == "again"
        victim.wait_end()
        assert leaked <= 0, name


def test_interrupted_share_loses_nothing(zygote):
    for index in range(_MOST):
        victim = zygote.victim(victims.interrupted_share, index)
        name, before, after = victim.recv()
        assert after == before, name
        shared, _ = victim.recv(name)
        assert shared, name
        victim.wait_end()
        if name in ("share.filled", "through"):
            return
    raise AssertionError("share() does not end")


def test_a_segment_freed_under_an_attaching_process_is_refused():
    rb = scenes.make(life_steps.KINDS)
    path = rb.path
    del rb
    with pytest.raises(FileNotFoundError):
        shmreplay.attach(path)
