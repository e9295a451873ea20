"""Where each field of a record lies: the packed row of the small ones, a column for each large one.

    row i:  | widest items ... | ... | bytes | zero padding |      stride `row_nbytes`

Fields are ordered by key path, whatever order the user inserted them in, and packed by falling item size, so that two
processes that see the same record agree on every byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .dtypes import DtypeCard, card_of
from .tree import Leaf, Node, leaves_of, show, sort_key

__all__ = ["COLUMN_NBYTES", "Column", "Field", "pack"]

COLUMN_NBYTES = 1024
"""A field of at least this many bytes per record has a column of its own."""


@dataclass(frozen=True)
class Column:
    """A large field: `nbytes` bytes per record, apart from the row."""

    key: tuple
    dtype: torch.dtype
    shape: torch.Size
    nbytes: int


@dataclass(frozen=True)
class Field:
    """One tensor of a record, its shape without the batch dimension, and where its bytes are.

    `where` is ("row", offset in bytes), ("column", position in `RecordLayout.columns`) or ("empty", 0) for a field
    without elements.
    """

    key: tuple
    dtype: torch.dtype
    shape: torch.Size
    nbytes: int
    where: tuple[str, int]

    @property
    def card(self) -> DtypeCard:
        """How numpy carries the dtype."""
        return card_of(self.dtype, show(self.key))


def _rounded_up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def _offsets(small: list[tuple[tuple, Leaf]]) -> tuple[dict[tuple, int], int]:
    """Byte offset of each small field, and the stride of a row."""
    offsets: dict[tuple, int] = {}
    end, widest = 0, 1
    for path, leaf in sorted(small, key=lambda pair: -pair[1].dtype.itemsize):  # stable: by path within a size
        itemsize = leaf.dtype.itemsize
        widest = max(widest, itemsize)
        offsets[path] = _rounded_up(end, itemsize)
        end = offsets[path] + itemsize * math.prod(leaf.shape)
    return offsets, _rounded_up(end, 64 if end >= 64 else max(8, widest))


def pack(tree: Node) -> tuple[int, tuple[Column, ...], tuple[Field, ...], list[int]]:
    """Places every leaf.

    Returns:
        `row_nbytes`, the columns, the fields in the order of their paths, and for each field its position among the
        tree's leaves.
    """
    leaves = list(leaves_of(tree))
    order = sorted(range(len(leaves)), key=lambda i: [sort_key(key) for key in leaves[i][0]])
    nbytes = {path: leaf.dtype.itemsize * math.prod(leaf.shape) for path, leaf in leaves}
    in_order = [leaves[i] for i in order]
    offsets, row_nbytes = _offsets([pair for pair in in_order if 0 < nbytes[pair[0]] < COLUMN_NBYTES])
    columns: list[Column] = []
    fields: list[Field] = []
    for path, leaf in in_order:
        if path in offsets:
            where = ("row", offsets[path])
        elif nbytes[path]:
            where = ("column", len(columns))
            columns.append(Column(path, leaf.dtype, leaf.shape, nbytes[path]))
        else:
            where = ("empty", 0)
        fields.append(Field(path, leaf.dtype, leaf.shape, nbytes[path], where))
    return row_nbytes, tuple(columns), tuple(fields), order
