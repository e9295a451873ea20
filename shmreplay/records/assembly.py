"""Trees back into data, and JSON back into trees."""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from typing import Any, Iterator

import torch
from tensordict import TensorDict, is_tensorclass

from ..errors import LayoutError
from .dtypes import dtype_named
from .tree import KEYED, SEQUENCES, Branch, Leaf, Node, joined

__all__ = ["CPU", "assemble", "load_class", "new_tensordict", "node_from"]

CPU = torch.device("cpu")


def _tensordict_unsafe(source: dict, batch: torch.Size, device: torch.device | None) -> TensorDict:
    return TensorDict._new_unsafe(source=source, batch_size=batch, device=device, nested=False)


def _tensordict_public(source: dict, batch: torch.Size, device: torch.device | None) -> TensorDict:
    return TensorDict(source, batch_size=batch, device=device)


def _has_unsafe() -> bool:
    make = getattr(TensorDict, "_new_unsafe", None)
    return make is not None and "nested" in inspect.signature(make).parameters


# The checks of the public constructor cost about 4 µs and can find nothing here: shapes come from the tree.
new_tensordict = _tensordict_unsafe if _has_unsafe() else _tensordict_public


def assemble(node: Node, tensors: Iterator, lead: torch.Size, device: torch.device | None = CPU) -> Any:
    """The user's structure around tensors that come in the order of `leaves_of`."""
    if isinstance(node, Leaf):
        return next(tensors)
    values = [assemble(child, tensors, lead, device) for child in node.children]
    if node.form == "tensordict":
        return new_tensordict(dict(zip(node.keys, values)), joined(lead, node.batch), device)
    if node.form == "tensorclass":
        content = new_tensordict(dict(zip(node.keys, values)), joined(lead, node.batch), device)
        return load_class(node).from_tensordict(content)
    if node.form == "dict":
        return dict(zip(node.keys, values))
    if node.form == "odict":
        return OrderedDict(zip(node.keys, values))
    if node.form == "namedtuple":
        return load_class(node)(*values)
    return tuple(values) if node.form == "tuple" else values


def load_class(node: Branch) -> Any:
    """The class of a tensorclass or namedtuple, imported on first need and checked to be one."""
    if node.loaded is None:
        module_name, _, qualname = node.type_name.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise LayoutError(
                f"The records are instances of {node.type_name}, which cannot be imported here ({error}); "
                "define the class at the top level of a module that this process can import."
            ) from error
        is_one = is_tensorclass(found) if node.form == "tensorclass" else _is_namedtuple(found)
        if not isinstance(found, type) or not is_one:
            raise LayoutError(
                f"The records are instances of {node.type_name}, which is not a {node.form} here; "
                "import the code that wrote the records."
            )
        node.loaded = found
    return node.loaded


def _is_namedtuple(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")


# --- JSON -> tree -----------------------------------------------------------------------------------------------


def node_from(plain: Any) -> Node:
    """The tree of JSON values, every part checked.

    Raises:
        LayoutError: the values are not what `plain` writes.
    """
    if isinstance(plain, list) and len(plain) == 2:
        return Leaf(dtype_named(plain[0]), _sizes(plain[1]))
    if not isinstance(plain, dict) or plain.keys() != {"form", "keys", "children", "batch", "type"}:
        raise LayoutError(f"Not a part of a record layout: {str(plain)[:80]!r}; write it with to_json().")
    keys, children, form, type_name = plain["keys"], plain["children"], plain["form"], plain["type"]
    if (
        form not in KEYED + SEQUENCES
        or not isinstance(keys, list)
        or not isinstance(children, list)
        or len(keys) != len(children)
        or any(type(key) not in (str, int) for key in keys)
        or len(set(keys)) != len(keys)
        or not isinstance(type_name, str)
        or bool(type_name) != (form in ("tensorclass", "namedtuple"))
    ):
        raise LayoutError(f"Not a container of a record layout: {str(plain)[:80]!r}; write it with to_json().")
    nodes = tuple(node_from(child) for child in children)
    return Branch(form, tuple(keys), nodes, _sizes(plain["batch"]), type_name, None)


def _sizes(plain: Any) -> torch.Size:
    if not isinstance(plain, list) or any(type(size) is not int or size < 0 for size in plain):
        raise LayoutError(f"Not a shape in a record layout: {str(plain)[:80]!r}; write it with to_json().")
    return torch.Size(plain)
