"""The rooms of the library: who may import whom, nobody reaches into another's privates, sizes, and the examples."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import shmreplay

ROOT = Path(shmreplay.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = ["errors checks", "shm", "state records", "storages writers samplers", "buffers", "cli __main__"]
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer.split()}
SIBLINGS = {("writers", "state"), ("storages", "records"), ("storages", "state")}

# A private name of one room that another may use, and why. Nothing else may.
# Rooms made of several classes that are one object (mixins of ReplayBuffer, of Storage) see each other's privates.
FRIENDS = {
    ("buffers", "_rng"): "one stream for all parts of a buffer",
    ("buffers", "_empty"): "TorchRL's name for what writer and sampler do on empty()",
    ("buffers", "_buffers"): "share() tells every buffer on the storage where it went",
    ("buffers", "_built"): "a snapshot holds records as the storage hands them out",
    ("buffers", "_put"): "a load writes records under the next epoch, outside any reservation",
    ("storages", "_bind"): "a storage that moved tells its buffers",
    ("writers", "_empty"): "TorchRL's name",
    ("writers", "_is_full"): "TorchRL's name",
    ("samplers", "_rand_given_ndim"): "TorchRL's name",
    ("records", "_tensordict"): "of tensordict's tensorclass",
    ("buffers", "_set_str"): "of tensordict: a set without the checks of a fresh key",
}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def imported_rooms(path: Path):
    """(line, room) of each import of another room of the library."""
    package = ["shmreplay", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            if name.split(".")[0] == "shmreplay":
                yield node.lineno, (name.split(".") + [""])[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward(path):
    room = room_of(path)
    if room == "__init__":
        return
    for line, other in imported_rooms(path):
        if other in ("", room):  # ``import shmreplay`` inside a function, to look a public class up by name
            continue
        lower = RANK[other] < RANK[room] or (room, other) in SIBLINGS
        assert lower, f"{path.name}:{line}: {room} imports {other}, which is not below it"


def test_every_room_has_a_layer():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set(RANK), rooms - set(RANK)


def test_bytes_and_processes_know_no_torch():
    for path in FILES:
        if room_of(path) in ("shm", "state", "errors", "checks"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                heavy = [name for name in names if name.split(".")[0] in ("torch", "tensordict")]
                assert not heavy, f"{path}:{node.lineno} imports {heavy}"


def own_names(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, classes, attributes set on self, class and module variables."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # __slots__
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_uses_anothers_privates(path):
    room = room_of(path)
    tree = ast.parse(path.read_text())
    mine = own_names(tree)
    for sibling in FILES:  # the halves of one object lie in one room
        if room_of(sibling) == room and room in ("buffers", "storages", "records"):
            mine |= own_names(ast.parse(sibling.read_text()))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os", "sys"):
            continue
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super":
            continue
        allowed = node.attr in mine or (room, node.attr) in FRIENDS
        assert allowed, f"{path.name}:{node.lineno} uses {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 45, f"{path.name}:{node.lineno} {node.name} has {length} lines"


def test_files_stay_short():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 450}
    assert not long, long


def modules() -> list[str]:
    found = pkgutil.walk_packages(shmreplay.__path__, "shmreplay.")
    return ["shmreplay", *(module.name for module in found if not module.name.endswith("__main__"))]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_public_classes_have_examples():
    kinds = [getattr(shmreplay, name) for name in shmreplay.__all__]
    bases = {"Storage", "TensorStorage", "Sampler", "Writer"}
    without = [
        kind.__name__
        for kind in kinds
        if isinstance(kind, type) and not issubclass(kind, Exception) and kind.__name__ not in bases
        and ">>>" not in (kind.__doc__ or "")
    ]  # fmt: skip
    assert not without


def test_all_is_sorted_and_complete():
    assert shmreplay.__all__ == sorted(shmreplay.__all__)
    assert all(hasattr(shmreplay, name) for name in shmreplay.__all__)


def test_every_friendship_is_used():
    used = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                used.add((room_of(path), node.attr))
    assert set(FRIENDS) <= used, set(FRIENDS) - used
