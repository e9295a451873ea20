"""Packed bytes into records: the memory that a gather fills, and the user's structure around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import from_numpy

from .assembly import CPU, assemble, new_tensordict
from .packing import Column, Field
from .tree import Branch, Leaf, Node, joined

__all__ = ["Builder", "Chunk", "Outline"]

_ROW, _CARRIED, _COLUMN, _EMPTY = range(4)


class Chunk:
    """Memory for n records, to be filled and then built from once.

    Attributes:
        n: number of records.
        rows: uint8 [n, row_nbytes] array, or None if the layout has no row.
        columns: one uint8 [n, nbytes] tensor per column: the bytes of the tensors that `build` returns.
    """

    __slots__ = ("columns", "n", "outputs", "rows")

    def __init__(self, n: int, rows: np.ndarray | None, columns: list, outputs: list) -> None:
        self.n = n
        self.rows = rows
        self.columns = columns
        self.outputs = outputs


class Outline:
    """A chunk with the records' structure already around it, to be filled and then finished once.

    Attributes:
        chunk: what a gather fills.
        data: the user's structure; its tensors hold the records once `finish` was called.
        has_more: whether the further entries asked for are in `data`.
    """

    __slots__ = ("chunk", "data", "has_more", "targets")

    def __init__(self, chunk: Chunk, data: Any, targets: list, has_more: bool) -> None:
        self.chunk = chunk
        self.data = data
        self.targets = targets
        self.has_more = has_more


class Builder:
    """Builds the records of one layout. Immutable."""

    def __init__(
        self, tree: Node, fields: tuple[Field, ...], columns: tuple[Column, ...], row_nbytes: int, order: list[int]
    ) -> None:
        self._tree = tree
        self._columns = columns
        self._row_nbytes = row_nbytes
        small = [field for field in fields if field.where[0] == "row"]
        # Each field is one opaque item here: numpy copies it with one memcpy a record, twice as fast as by element.
        self._row_dtype = np.dtype(
            {
                "names": [str(number) for number in range(len(small))],
                "formats": [f"V{field.nbytes}" for field in small],
                "offsets": [field.where[1] for field in small],
                "itemsize": row_nbytes,
            }
        )
        names = {field.key: str(number) for number, field in enumerate(small)}
        by_leaf = sorted(zip(order, fields), key=lambda pair: pair[0])
        self._steps = [_step(field, names.get(field.key, "")) for _, field in by_leaf]
        only_rows = all(how == _ROW for how, _, _, _ in self._steps)
        self._row_steps = [(place, inner) for _, place, inner, _ in self._steps] if only_rows else None
        is_flat = isinstance(tree, Branch) and tree.form == "tensordict"
        is_flat = is_flat and all(isinstance(child, Leaf) for child in tree.children)
        self._flat_keys = tree.keys if is_flat else None

    def allocate(self, n: int) -> Chunk:
        """Fresh memory for n records."""
        rows = np.empty((n, self._row_nbytes), np.uint8) if self._row_nbytes else None
        if not self._columns:
            return Chunk(n, rows, [], [])
        flat = [torch.empty((n, column.nbytes), dtype=torch.uint8) for column in self._columns]
        outputs = [part.view(column.dtype).view(n, *column.shape) for part, column in zip(flat, self._columns)]
        return Chunk(n, rows, flat, outputs)

    def build(self, chunk: Chunk) -> Any:
        """The records of a filled chunk, batched."""
        if self._flat_keys is not None:  # what `assemble` does, without asking each node what it is
            source = dict(zip(self._flat_keys, self._tensors(chunk)))
            return new_tensordict(source, joined(torch.Size((chunk.n,)), self._tree.batch), CPU)
        return assemble(self._tree, iter(self._tensors(chunk)), torch.Size((chunk.n,)))

    def outline(self, n: int, more: dict[str, torch.Tensor]) -> Outline:
        """What `build` makes, before the bytes are there: all but one copy a field is done when they come.

        `more` are further root entries, put in where the root is a TensorDict of tensors only.
        """
        chunk, targets, tensors = self.allocate(n), [], []
        for how, place, inner, dtype in self._steps:
            if how == _COLUMN:
                tensor = chunk.outputs[place]
            elif how == _EMPTY:
                tensor = torch.empty((n, *inner), dtype=dtype)
            else:
                items = np.empty((n,), self._row_dtype[place])
                targets.append((place, items))
                tensor = from_numpy(items.view(inner))
                tensor = tensor if how == _ROW else tensor.view(dtype)
            tensors.append(tensor)
        has_more = bool(more) and self._flat_keys is not None and not self._tree.batch
        if self._flat_keys is not None:
            source = dict(zip(self._flat_keys, tensors))
            if has_more:
                source.update(more)
            data = new_tensordict(source, joined(torch.Size((n,)), self._tree.batch), CPU)
        else:
            data = assemble(self._tree, iter(tensors), torch.Size((n,)))
        return Outline(chunk, data, targets, has_more)

    def finish(self, outline: Outline) -> Any:
        """The outline's data, with the records of its filled chunk."""
        if outline.targets:
            packed = np.ndarray((outline.chunk.n,), self._row_dtype, outline.chunk.rows)
            for place, items in outline.targets:
                items[...] = packed[place]
        return outline.data

    def build_one(self, chunk: Chunk) -> Any:
        """The record of a filled chunk of one."""
        return assemble(self._tree, iter([tensor[0] for tensor in self._tensors(chunk)]), torch.Size(()))

    def _tensors(self, chunk: Chunk) -> list[torch.Tensor]:
        n, rows = chunk.n, chunk.rows
        packed = None if rows is None else np.ndarray((n,), self._row_dtype, rows)
        if self._row_steps is not None:
            return [from_numpy(packed[place].copy().view(inner)) for place, inner in self._row_steps]
        tensors = []
        for how, place, inner, dtype in self._steps:
            if how == _ROW:
                tensor = from_numpy(packed[place].copy().view(inner))
            elif how == _CARRIED:
                tensor = from_numpy(packed[place].copy().view(inner)).view(dtype)
            elif how == _COLUMN:
                tensor = chunk.outputs[place]
            else:
                tensor = torch.empty((n, *inner), dtype=dtype)
            tensors.append(tensor)
        return tensors


def _step(field: Field, name: str) -> tuple:
    """How to make one tensor: what to do, where the bytes are, shape or numpy dtype of one item, torch dtype."""
    where, place = field.where
    if where == "column":
        return _COLUMN, place, None, field.dtype
    if where == "empty":
        return _EMPTY, 0, field.shape, field.dtype
    inner = np.dtype((field.card.array_dtype, tuple(field.shape)))
    return (_ROW if field.card.carrier is None else _CARRIED), name, inner, field.dtype
