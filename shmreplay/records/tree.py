"""The structure of one record: which containers, under which keys, around which leaves.

A tree is made of `Leaf` and `Branch` values, is immutable but for the remembered class, and writes itself as JSON.
`describe` reads it off data, `flatten` checks data against it and lists the tensors; the ways back are in `assembly`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Iterator

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor, is_tensorclass

from ..errors import LayoutError, LayoutKeyError, LayoutTypeError
from .dtypes import card_of

__all__ = [
    "KEYED",
    "SEQUENCES",
    "Branch",
    "Leaf",
    "Node",
    "describe",
    "flatten",
    "joined",
    "leaves_of",
    "show",
    "sort_key",
]

Path = tuple  # of str and int
KEYED = ("tensordict", "tensorclass", "dict", "odict")
SEQUENCES = ("tuple", "list", "namedtuple")


class Leaf:
    """One tensor of a record: dtype and shape without the batch dimension."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: torch.dtype, shape: torch.Size) -> None:
        self.dtype = dtype
        self.shape = shape

    def plain(self, canonical: bool = False) -> list:
        """The leaf as JSON values."""
        return [str(self.dtype).removeprefix("torch."), list(self.shape)]


class Branch:
    """One container of a record. `batch` is the batch size that its TensorDict has within one record.

    Only `loaded` changes after construction: the class of a tensorclass or namedtuple, remembered once imported.
    """

    __slots__ = ("batch", "children", "form", "keys", "loaded", "type_name")

    def __init__(self, form: str, keys: tuple, children: tuple, batch: torch.Size, type_name: str, loaded: Any) -> None:
        self.form = form
        self.keys = keys
        self.children = children
        self.batch = batch
        self.type_name = type_name
        self.loaded = loaded

    def plain(self, canonical: bool = False) -> dict:
        """The branch as JSON values; `canonical` forgets the order in which keys were inserted."""
        pairs = list(zip(self.keys, self.children))
        if canonical and self.form in ("tensordict", "tensorclass", "dict"):
            pairs.sort(key=lambda pair: sort_key(pair[0]))
        return {
            "form": self.form,
            "keys": [key for key, _ in pairs],
            "children": [child.plain(canonical) for _, child in pairs],
            "batch": list(self.batch),
            "type": self.type_name,
        }


Node = Leaf | Branch


def sort_key(key: str | int) -> tuple:
    """Orders keys of both types the same way in every process."""
    return (0, key, "") if isinstance(key, int) else (1, 0, key)


def show(path: Path) -> str:
    """A key path as messages print it."""
    if not path:
        return "the root"
    return f"key {path[0]!r}" if len(path) == 1 else f"key {path!r}"


def leaves_of(node: Node, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """All leaves with their key paths, in the order of `flatten` and `assemble`."""
    if isinstance(node, Leaf):
        yield path, node
        return
    for key, child in zip(node.keys, node.children):
        yield from leaves_of(child, (*path, key))


def joined(lead: torch.Size, shape: torch.Size) -> torch.Size:
    """One shape after another; always a `torch.Size`, which `+` gives in newer versions only."""
    return torch.Size((*lead, *shape)) if shape else lead


# --- data -> tree -----------------------------------------------------------------------------------------------


def kind_of(value: Any, path: Path = ()) -> str:
    """The form of one node of data: "leaf" or one of the container forms.

    Raises:
        LayoutTypeError: it is something that cannot be stored.
    """
    if isinstance(value, torch.Tensor):
        return "leaf"
    if isinstance(value, TensorDict):
        return "tensordict"
    if is_non_tensor(value):
        raise LayoutTypeError(
            f"NonTensorData under {show(path)} cannot be stored; a replay buffer holds tensors only. Encode it as a "
            "tensor or remove the key (td.exclude(key)) before writing."
        )
    if is_tensorclass(value):
        return "tensorclass"
    if isinstance(value, TensorDictBase):
        return "tensordict"
    exact = {dict: "dict", OrderedDict: "odict", tuple: "tuple", list: "list"}.get(type(value))
    if exact:
        return exact
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "namedtuple"
    if isinstance(value, (bool, int, float, complex, np.number, np.bool_, np.ndarray)):
        return "leaf"
    raise LayoutTypeError(
        f"A {type(value).__name__} under {show(path)} cannot be stored; records are made of tensors, numpy arrays and "
        "numbers in TensorDicts, tensorclasses, dicts, tuples and lists. Convert it to a tensor or leave it out."
    )


def _array_tensor(value: Any, path: Path) -> torch.Tensor:
    if isinstance(value, np.ndarray) and (not value.flags.writeable or min(value.strides, default=0) < 0):
        value = value.copy()  # torch warns about the one and refuses the other
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LayoutTypeError(
            f"The {type(value).__name__} under {show(path)} cannot be stored: {error}; convert it to a tensor."
        ) from error


def leaf_tensor(value: Any, path: Path) -> torch.Tensor:
    """The detached strided tensor of a leaf, its conj and neg bits resolved.

    Raises:
        LayoutTypeError: sparse, nested, meta or quantized tensors, and arrays of a dtype that torch lacks.
    """
    tensor = value if isinstance(value, torch.Tensor) else _array_tensor(value, path)
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        found = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else "sparse or nested"
        raise LayoutTypeError(
            f"The {found} tensor under {show(path)} cannot be stored; convert it first to a dense one "
            "(dequantize(), to_dense(), or padding)."
        )
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.is_conj():
        tensor = _resolve_conj(tensor)
    return tensor


def _resolve_conj(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not torch.complex32:
        return tensor.resolve_conj()
    halves = torch.view_as_real(tensor.conj()).clone()  # torch has no resolve_conj for complex32 on the CPU
    halves[..., 1].neg_()
    return torch.view_as_complex(halves)


def children_of(form: str, value: Any, path: Path, ignore: frozenset = frozenset()) -> dict:
    """Keys and children of a container; `ignore` names keys that are not read."""
    if form in SEQUENCES:
        return dict(enumerate(value))
    if form == "tensorclass":
        value = value._tensordict
    if isinstance(value, LazyStackedTensorDict):
        _check_same_keys(value, path)
    children = {}
    for key in value.keys():
        if key in ignore:
            continue
        if type(key) not in (str, int):
            raise LayoutTypeError(f"The key {key!r} under {show(path)} is a {type(key).__name__}; use a str or an int.")
        try:
            children[key] = value[key] if form in ("dict", "odict") else value.get(key)
        except RuntimeError as error:  # a lazy stack of different shapes
            raise LayoutError(
                f"The values under {show((*path, key))} cannot be read as one tensor: {error} "
                "Pad them to one shape before writing."
            ) from error
    return children


def _check_same_keys(stack: LazyStackedTensorDict, path: Path) -> None:
    # A lazy stack lists only the keys that all its parts have: the others would be lost in silence.
    first = set(stack.tensordicts[0].keys()) if stack.tensordicts else set()
    for position, part in enumerate(stack.tensordicts):
        odd = first.symmetric_difference(part.keys())
        if odd:
            raise LayoutKeyError(
                f"Element {position} of the lazy stack under {show(path)} has other keys than element 0: "
                f"{sorted(map(str, odd))}; give every element the same keys."
            )


def type_name_of(form: str, value: Any) -> str:
    """module:qualname of a tensorclass or namedtuple, else the empty string."""
    if form not in ("tensorclass", "namedtuple"):
        return ""
    cls = type(value)
    # A spawned child runs the parent's script under this name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def describe(value: Any, batched: bool, ignore: frozenset = frozenset(), path: Path = ()) -> Node:
    """Reads the tree of a record off data. `ignore` holds for the root only."""
    form = kind_of(value, path)
    if form == "leaf":
        tensor = leaf_tensor(value, path)
        card_of(tensor.dtype, show(path))
        if batched and tensor.dim() == 0:
            raise LayoutError(
                f"The value under {show(path)} has no batch dimension, so it is not a batch of records; "
                "write one record with add(), or give every value a leading dimension."
            )
        return Leaf(tensor.dtype, tensor.shape[1:] if batched else tensor.shape)
    batch = torch.Size(())
    if form in ("tensordict", "tensorclass"):
        batch = value.batch_size
        if batched and not batch:
            raise LayoutError(
                f"The TensorDict under {show(path)} has batch size [], so it is not a batch of records; write one "
                "record with add(), or unsqueeze(0) it."
            )
        batch = batch[1:] if batched else batch
    children = children_of(form, value, path, ignore if form == "tensordict" else frozenset())
    nodes = tuple(describe(child, batched, path=(*path, key)) for key, child in children.items())
    loaded = type(value) if form in ("tensorclass", "namedtuple") else None
    return Branch(form, tuple(children), nodes, batch, type_name_of(form, value), loaded)


# --- data checked against a tree --------------------------------------------------------------------------------


def flatten(node: Node, value: Any, ignore: frozenset = frozenset(), path: Path = ()) -> list[torch.Tensor]:
    """The tensors of data in the order of `leaves_of`, after checking that the structure is the tree's.

    Raises:
        LayoutKeyError: a key is missing or too many.
        LayoutTypeError: another container, or a value that cannot be stored.
    """
    form = kind_of(value, path)
    expected = "leaf" if isinstance(node, Leaf) else node.form
    if form != expected or (form != "leaf" and type_name_of(form, value) != node.type_name):
        wanted = "tensor" if expected == "leaf" else node.type_name or expected
        raise LayoutTypeError(
            f"Expected a {wanted} under {show(path)}, found a {type(value).__name__}; "
            "write records of one structure, or make another buffer for these."
        )
    if form == "leaf":
        return [leaf_tensor(value, path)]
    children = children_of(form, value, path, ignore if form == "tensordict" else frozenset())
    _check_keys(node, children, path)
    tensors: list[torch.Tensor] = []
    for key, child in zip(node.keys, node.children):
        tensors += flatten(child, children[key], path=(*path, key))
    return tensors


def _check_keys(node: Branch, children: dict, path: Path) -> None:
    for key in node.keys:
        if key not in children:
            raise LayoutKeyError(
                f"Missing {show((*path, key))}: the records have {list(node.keys)} under {show(path)}, found "
                f"{list(children)}; add the value, or make another buffer for records without it."
            )
    for key in children:
        if key not in node.keys:
            raise LayoutKeyError(
                f"Unexpected {show((*path, key))}: the records have {list(node.keys)} under {show(path)}, found "
                f"{list(children)}; remove the value, or make another buffer for records with it."
            )
