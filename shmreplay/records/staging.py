"""Records into packed bytes: checks everything, then fills rows and columns.

`Stager.stage_plain` is the fast path for plain TensorDicts of CPU tensors; it does what `stage_tensors` does, without
looking at what a type test already settles, and hands over to the general path at the first surprise, which then
either stores the data or explains what is wrong with it.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import Any, Callable

import numpy as np
import torch
from tensordict import TensorDict

from ..errors import LayoutError
from .packing import Field
from .tree import Branch, Leaf, Node, joined, show

__all__ = ["Staged", "Stager"]

_KEPT_NBYTES = 4 << 20  # a thread keeps no larger staging buffer than this
_KEPT_PLANS = 64
_ONE = -1  # the plan of a single record without a batch dimension
_NEEDS_GENERAL = (KeyError, IndexError, TypeError, RuntimeError, AttributeError)


class Staged:
    """Records as bytes, ready to be copied into slots.

    `rows` belongs to the thread that staged and is overwritten by its next `stage` on the same layout; `columns` may
    alias the user's memory. Copy both out before either changes.

    Attributes:
        n: number of records.
        rows: uint8 [n, row_nbytes], C-contiguous, or None if the layout has no row.
        columns: one uint8 [n, nbytes] array per column, C-contiguous.
    """

    __slots__ = ("columns", "n", "rows")

    def __init__(self, n: int, rows: np.ndarray | None, columns: list[np.ndarray]) -> None:
        self.n = n
        self.rows = rows
        self.columns = columns


class _Plan:
    """Views on one staging buffer for one number of records. Immutable."""

    __slots__ = ("columns", "n", "rows", "targets")

    def __init__(self, n: int, rows: np.ndarray | None, targets: list[tuple], columns: list[tuple]) -> None:
        self.n = n
        self.rows = rows
        self.targets = targets  # per row field: view, its shape, dtype as numpy knows it, (torch dtype, carrier) | None
        self.columns = columns  # per column field: shape, dtype as numpy knows it, (torch dtype, carrier) | None


class _Kept(threading.local):
    """This thread's staging buffer and the plans on it."""

    def __init__(self) -> None:
        self.buffer = np.zeros(0, np.uint8)
        self.plans: dict[int, _Plan] = {}


class Stager:
    """Stages the records of one layout.

    Only `_kept` changes after construction, and each thread sees its own. Padding bytes are zero because buffers
    start as zeros and only fields are ever written.
    """

    def __init__(self, tree: Node, fields: tuple[Field, ...], row_nbytes: int, ignore: frozenset) -> None:
        self._fields = fields
        self._row_numbers = [number for number, field in enumerate(fields) if field.where[0] == "row"]
        self._column_numbers = [number for number, field in enumerate(fields) if field.where[0] == "column"]
        self._row_fields = [fields[number] for number in self._row_numbers]
        self._column_fields = [fields[number] for number in self._column_numbers]
        self._row_nbytes = row_nbytes
        self._root_class = tree.loaded if isinstance(tree, Branch) and tree.form == "tensorclass" else None
        self._ignore = frozenset() if self._root_class else ignore
        self._kept = _Kept()
        self._root_count = len(tree.keys) if isinstance(tree, Branch) else 0
        plain = _is_plain(tree, self._root_class) and all(
            field.nbytes and field.dtype is not torch.complex32 for field in fields
        )  # the conj bit of complex32 and the shape of a field without bytes need the general path
        nested = _nested_steps(tree) if plain else []
        self._pick_rows = _picker(nested, self._row_fields) if plain else None
        self._pick_columns = _picker(nested, self._column_fields) if plain else None

    def stage_plain(self, data: Any, batched: bool) -> Staged | None:
        """The fast path; None when the data need the general one."""
        pick = self._pick_rows
        if pick is None:
            return None
        try:
            if type(data) is not TensorDict or self._root_class:
                data = data._tensordict if type(data) is self._root_class else None
                if type(data) is not TensorDict:
                    return None
            n = data.batch_size[0] if batched else _ONE
            plan = self._kept.plans.get(n) or self._plan(n)
            source = data._tensordict
            if plan is None or len(source) != self._root_count and self._has_extra(source):
                return None
            for (view, shape, array_dtype, exotic), leaf in zip(plan.targets, pick(source)):
                if type(leaf) is not torch.Tensor:
                    return None
                if exotic is not None:
                    if leaf.dtype is not exotic[0]:
                        return None
                    leaf = leaf.view(exotic[1])
                array = leaf.numpy()
                if array.shape != shape or array.dtype is not array_dtype:
                    return None
                view[...] = array
            columns = self._plain_columns(plan, source) if plan.columns else []
        except _NEEDS_GENERAL:  # a missing key, a CUDA tensor, one that requires grad or has a conj bit
            return None
        return None if columns is None else Staged(plan.n, plan.rows, columns)

    def _plain_columns(self, plan: _Plan, source: dict) -> list[np.ndarray] | None:
        columns = []
        for (shape, array_dtype, exotic), leaf in zip(plan.columns, self._pick_columns(source)):
            if type(leaf) is not torch.Tensor:
                return None
            if exotic is not None:
                if leaf.dtype is not exotic[0]:
                    return None
                leaf = leaf.view(exotic[1])
            array = leaf.numpy()
            if array.shape != shape or array.dtype is not array_dtype:
                return None
            columns.append(_column_bytes(array, plan.n))
        return columns

    def _has_extra(self, source: dict) -> bool:
        return len(source) - sum(key in source for key in self._ignore) != self._root_count

    def stage_tensors(self, tensors: list[torch.Tensor], n: int, batched: bool) -> Staged:
        """The general path: checks each tensor, in the order of the fields, then fills.

        Raises:
            LayoutError: a dtype, shape or length that the layout does not have; nothing was produced.
        """
        for field, tensor in zip(self._fields, tensors):
            _check_leaf(field, tensor, n, batched)
        plan = self._kept.plans.get(n if batched else _ONE) or self._plan(n if batched else _ONE)
        small = [tensors[number] for number in self._row_numbers]
        if small and all(tensor.device.type != "cpu" for tensor in small):
            plan.rows[:] = self._packed_on_device(small, plan.n).cpu().numpy()
        else:
            for (view, _, _, exotic), tensor in zip(plan.targets, small):
                view[...] = _as_array(tensor, exotic)
        columns = [
            _column_bytes(_as_array(tensors[number], exotic), plan.n)
            for (_, _, exotic), number in zip(plan.columns, self._column_numbers)
        ]
        return Staged(plan.n, plan.rows, columns)

    def _packed_on_device(self, small: list[torch.Tensor], n: int) -> torch.Tensor:
        """All rows, packed where the tensors are: one copy to the host instead of one a field."""
        device = small[0].device
        rows = torch.zeros((n, self._row_nbytes), dtype=torch.uint8, device=device)
        for field, tensor in zip(self._row_fields, small):
            start = field.where[1]
            flat = tensor.to(device).contiguous().reshape(n, -1)
            rows[:, start : start + field.nbytes] = flat.view(torch.uint8)
        return rows

    def set_aside(self) -> None:
        """Use another buffer from now on, in this thread: the present one is still being copied from."""
        self._kept.buffer, self._kept.plans = np.zeros(0, np.uint8), {}

    def _plan(self, key: int) -> _Plan | None:
        """The views for `key` records (or one without batch dimension), on a buffer that is large enough."""
        if key == 0:
            return None
        n, lead = (1, torch.Size(())) if key == _ONE else (key, torch.Size((key,)))
        nbytes = n * self._row_nbytes
        kept = self._kept
        if nbytes > _KEPT_NBYTES:
            return self._planned(np.zeros(nbytes, np.uint8), n, lead)
        if nbytes > kept.buffer.size:
            kept.buffer = np.zeros(min(_KEPT_NBYTES, 2 * nbytes), np.uint8)
            kept.plans = {}
        elif len(kept.plans) >= _KEPT_PLANS:
            kept.plans = {}
        plan = self._planned(kept.buffer, n, lead)
        kept.plans[key] = plan
        return plan

    def _planned(self, buffer: np.ndarray, n: int, lead: torch.Size) -> _Plan:
        stride = self._row_nbytes
        targets, columns = [], []
        for field in self._row_fields:
            card = field.card
            shape = tuple(joined(lead, field.shape))
            inner = np.empty(field.shape, card.array_dtype).strides
            strides = (stride, *inner) if lead else inner
            view = np.ndarray(shape, card.array_dtype, buffer, field.where[1], strides)
            targets.append((view, shape, card.array_dtype, _exotic(field)))
        for field in self._column_fields:
            columns.append((tuple(joined(lead, field.shape)), field.card.array_dtype, _exotic(field)))
        rows = buffer[: n * stride].reshape(n, stride) if stride else None
        return _Plan(n, rows, targets, columns)


def _exotic(field: Field) -> tuple[torch.dtype, torch.dtype] | None:
    return None if field.card.carrier is None else (field.dtype, field.card.carrier)


def _as_array(tensor: torch.Tensor, exotic: tuple | None) -> np.ndarray:
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    return (tensor if exotic is None else tensor.view(exotic[1])).numpy()


def _column_bytes(array: np.ndarray, n: int) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(n, -1).view(np.uint8)


def _check_leaf(field: Field, tensor: torch.Tensor, n: int, batched: bool) -> None:
    """Raises LayoutError unless the tensor is n (or, not batched, one) of the field."""
    where = show(field.key)
    if tensor.dtype is not field.dtype:
        raise LayoutError(
            f"Expected {field.dtype} under {where}, found {tensor.dtype}; values are never cast in silence: "
            f"convert them with .to({field.dtype}) before writing."
        )
    expected = joined(torch.Size((n,)), field.shape) if batched else field.shape
    if tensor.shape == expected:
        return
    found = tuple(tensor.shape)
    advice = "reshape it, or make another buffer for records of this shape."
    if batched and tensor.shape == field.shape:
        advice = "this looks like one record: write it with add(), or unsqueeze(0) it."
    elif batched and tensor.shape[1:] == field.shape:
        advice = f"every value of the batch must have length {n}, found {found[0]}."
    elif not batched and tensor.shape[1:] == field.shape:
        advice = "this looks like a batch: write it with extend()."
    raise LayoutError(f"Expected shape {tuple(expected)} under {where}, found {found}; {advice}")


# --- plain TensorDicts, read through their dicts -----------------------------------------------------------------


def _is_plain(node: Node, root_class: type | None = None) -> bool:
    """Whether there is nothing but TensorDicts in a TensorDict (or in a tensorclass, for the root)."""
    if not isinstance(node, Branch) or node.form != ("tensorclass" if root_class else "tensordict"):
        return False
    return all(isinstance(child, Leaf) or _is_plain(child) for child in node.children)


def _nested_steps(tree: Branch) -> list[tuple[tuple, int, str, int]]:
    """For each nested TensorDict, parents first: path, number of its parent, key in it, number of its own keys."""
    steps: list[tuple[tuple, int, str, int]] = []
    todo = [((), 0, tree)]
    while todo:
        path, number, branch = todo.pop(0)
        for key, child in zip(branch.keys, branch.children):
            if isinstance(child, Branch):
                steps.append(((*path, key), number, key, len(child.keys)))
                todo.append(((*path, key), len(steps), child))
    return steps


def _picker(nested: list[tuple], fields: list[Field]) -> Callable[[dict], Any]:
    """A function from the root's dict to the leaves of the fields; raises KeyError where the structure is another."""
    if not nested:
        keys = [field.key[0] for field in fields]
        if len(keys) > 1:
            return itemgetter(*keys)
        return lambda source: [source[key] for key in keys]
    numbers = {path: number for number, (path, _, _, _) in enumerate(nested, 1)}
    numbers[()] = 0
    wanted = [(numbers[field.key[:-1]], field.key[-1]) for field in fields]

    def pick(source: dict) -> list:
        sources = [source]
        for _, parent, key, count in nested:
            child = sources[parent][key]
            inner = child._tensordict
            if type(child) is not TensorDict or len(inner) != count:
                raise KeyError(key)
            sources.append(inner)
        return [sources[number][key] for number, key in wanted]

    return pick
