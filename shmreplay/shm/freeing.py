"""Leaving a segment, and freeing what nobody holds any more.

Whoever frees holds every member byte, marks the segment as freed, saves what belongs to a folder of the user's, and
unlinks. Dead at any point of that, it leaves a folder whose member bytes nobody holds: the next sweep goes on.
"""

import json
import os
import shutil

from . import table
from .folders import file_lock, folder, is_marked, own_scratch, remove_of_other_boots, save_control, write_marker
from .members import Members, nobody_lives
from .points import point


def leave(members: Members, path: str) -> None:
    """Give up the seat; the last one out frees the segment. Never raises: it runs in finalizers and at exit."""
    if members.row < 0:
        return
    try:
        point("shmreplay.leave")
        members.say_left()
    finally:
        members.leave()
    point("shmreplay.left")
    try:
        free_if_dead(path)
    except OSError:
        pass


def is_being_freed(path: str) -> bool:
    """Whether somebody is in the middle of freeing the segment at ``path``, or has freed it."""
    try:
        with open(os.path.join(path, "control"), "rb") as file:
            file.seek(8 * table.H_FREED)
            return any(file.read(8))
    except FileNotFoundError:
        return True


def free_if_dead(path: str) -> bool:
    """Free the segment at ``path`` if no member lives; True if it did."""
    try:
        fd = nobody_lives(os.path.join(path, "members"))
    except FileNotFoundError:
        return False
    if fd is None:
        return False
    try:
        _free(path)
    finally:
        os.close(fd)
    return True


def _free(path: str) -> None:
    """Mark, save what belongs to a folder of the user's, unlink. The caller holds every member byte."""
    point("shmreplay.freeing")
    control = os.path.join(path, "control")
    try:
        fd = os.open(control, os.O_RDWR | os.O_CLOEXEC)
        os.pwrite(fd, (1).to_bytes(8, "little"), 8 * table.H_FREED)
        os.close(fd)
    except FileNotFoundError:
        pass
    point("shmreplay.freed")
    try:
        with open(os.path.join(path, "config.json")) as file:
            config = json.load(file)
    except (OSError, ValueError):
        config = {}
    records = config.get("records_folder")
    if records and config.get("records_are_ours"):
        shutil.rmtree(records, ignore_errors=True)
    elif records and is_marked(records, path):  # else saved already, or dead before it was the folder's
        save_control(control, records)
        point("shmreplay.saved")
        write_marker(records, None)
    point("shmreplay.unlinking")
    shutil.rmtree(path, ignore_errors=True)
    point("shmreplay.unlinked")


def sweep() -> int:
    """Free what the dead left; returns how many segments that were."""
    home = folder()
    if not os.path.isdir(home):
        return 0
    with file_lock(os.path.join(home, ".lock")):
        return sweep_locked(home)


def sweep_locked(home: str) -> int:
    """``sweep``, by who owns the file lock."""
    count = 0
    remove_of_other_boots(own_scratch())
    for name in os.listdir(home):
        path = os.path.join(home, name)
        if name.startswith(".") or not os.path.isdir(path):
            continue
        if not os.path.exists(os.path.join(path, "members")):
            shutil.rmtree(path, ignore_errors=True)  # died while creating; creation holds the file lock
        try:
            count += free_if_dead(path)
        except Exception:  # one damaged folder must not stop every creation
            continue
    return count
