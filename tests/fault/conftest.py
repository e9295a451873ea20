"""Fixtures of the fault tests."""

import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import zygote as zygotes  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def own_folder():
    """Segments of these tests lie in a folder of their own, so that what leaks can be seen."""
    before, folder = os.environ.get("SHMREPLAY_DIR"), f"/dev/shm/shmreplay-fault-{os.getpid()}"
    os.makedirs(folder)
    os.environ["SHMREPLAY_DIR"] = folder
    yield folder
    shutil.rmtree(folder)
    os.environ.pop("SHMREPLAY_DIR")
    if before is not None:
        os.environ["SHMREPLAY_DIR"] = before


@pytest.fixture(scope="session")
def zygote(own_folder):
    """The warm process that victims are forked from."""
    with zygotes.Zygote() as started:
        yield started
