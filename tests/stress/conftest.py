"""Sizes of the stress tests.

By default they are cut to run in minutes; `SHMREPLAY_STRESS=full scripts/test tests/stress -s` runs the full sizes and
prints what was measured.
"""

import os
import shutil

import pytest

from stress_campaign.audit import left_files

FULL = os.environ.get("SHMREPLAY_STRESS") == "full"


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if "tests/stress" in str(item.path):
            item.add_marker(pytest.mark.timeout(1800 if FULL else 180))


@pytest.fixture
def full() -> bool:
    """Whether the full sizes were asked for."""
    return FULL


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.passed_call = report.passed
    return report


@pytest.fixture(autouse=True)
def segments(request, monkeypatch):
    """A folder of its own for segments, that must be empty in the end; a failed test's traceback keeps its buffer."""
    root = f"/dev/shm/shmreplay-test-{os.getpid()}"
    os.makedirs(root, exist_ok=True)
    monkeypatch.setenv("SHMREPLAY_DIR", root)
    yield
    left = left_files()
    shutil.rmtree(root)
    assert not (left and getattr(request.node, "passed_call", False)), left
