"""Fixtures of the fault tests."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import zygote as zygotes  # noqa: E402


@pytest.fixture(scope="session")
def zygote():
    """The warm process that victims are forked from."""
    with zygotes.Zygote() as started:
        yield started


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory, monkeypatch):
    """Segments of these tests lie in a folder of their own, so that what leaks can be seen."""
    folder = os.path.join("/dev/shm", f"shmreplay-fault-{os.getpid()}")
    os.makedirs(folder, exist_ok=True)
    monkeypatch.setenv("SHMREPLAY_DIR", folder)
    return folder
