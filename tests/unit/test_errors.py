"""The exceptions: what each is besides, and that they pickle."""

import copy
import pickle

import pytest

import shmreplay
from shmreplay import errors

BUILTINS = {
    "BudgetError": RuntimeError,
    "ClosedError": RuntimeError,
    "CorruptError": RuntimeError,
    "ForkError": RuntimeError,
    "LayoutError": ValueError,
    "LayoutKeyError": KeyError,
    "LayoutTypeError": TypeError,
    "MembersFullError": RuntimeError,
    "SampleTimeoutError": TimeoutError,
    "SpaceError": OSError,
    "VersionError": RuntimeError,
}


def test_every_error_is_listed_here_and_public():
    assert set(errors.__all__) == set(BUILTINS) | {"ShmReplayError"}
    assert all(getattr(shmreplay, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.parametrize("name", BUILTINS)
def test_is_the_builtin_too(name):
    kind = getattr(errors, name)
    assert issubclass(kind, BUILTINS[name]) and issubclass(kind, errors.ShmReplayError)


@pytest.mark.parametrize("name", BUILTINS)
@pytest.mark.parametrize("clone", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_pickles(name, clone):
    error = getattr(errors, name)("asked for 3, found 2")
    again = clone(error)
    assert type(again) is type(error) and again.args == error.args and str(again) == "asked for 3, found 2"


def test_a_key_error_shows_its_text_without_quotes():
    assert str(errors.LayoutKeyError("Missing key 'a'")) == "Missing key 'a'"
    assert str(errors.LayoutKeyError()) == ""


def test_a_space_error_keeps_its_number():
    import errno

    error = pickle.loads(pickle.dumps(errors.SpaceError(errno.ENOSPC, "no room")))
    assert error.errno == errno.ENOSPC and error.strerror == "no room"
