"""Children that live for the whole run: starting a process and importing torch costs seconds."""

import pytest

import servants


@pytest.fixture(scope="session")
def crew():
    """Four spawned processes that run what they are asked; see ``servants.Servant``."""
    started = [servants.Servant() for _ in range(4)]
    yield started
    for servant in started:
        servant.stop()


@pytest.fixture
def servant(crew):
    return crew[0]
