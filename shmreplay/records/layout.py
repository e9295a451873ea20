"""`RecordLayout`: user data to packed bytes and back. No locking, no shared memory."""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import Any, Sequence

import torch

from ..errors import LayoutError, LayoutKeyError, LayoutTypeError
from .assembly import assemble, node_from
from .building import Builder, Chunk, Outline
from .packing import Column, Field, pack
from .staging import Staged, Stager
from .tree import Branch, Leaf, Node, describe, flatten, leaves_of, show

__all__ = ["RecordLayout"]

_VERSION = 1
_KINDS = {"tensordict": "tensordict", "tensorclass": "tensorclass", "leaf": "tensor"}


class RecordLayout:
    """How one record is laid out in bytes. Immutable; equal and hashed by `digest`.

    Staging keeps a buffer for each thread, which nothing outside this object sees but through `Staged`.

    Attributes:
        kind: "tensordict", "tensorclass", "tensor" or "pytree".
        row_nbytes: stride of the packed row of all small fields, 0 without any.
        columns: the large fields (1024 bytes per record and more), each stored apart.
        fields: all tensors of a record, ordered by key path.
        digest: hex; the same for the same records, in whatever order their keys were inserted.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"obs": torch.ones(3, 4), "done": torch.zeros(3, 1, dtype=torch.bool)}, [3])
        >>> layout = RecordLayout.of(batch, batched=True)
        >>> layout.row_nbytes
        24
        >>> staged = layout.stage(batch, batched=True)
        >>> chunk = layout.allocate(2)
        >>> chunk.rows[:] = staged.rows[[2, 0]]
        >>> layout.build(chunk)["obs"].shape
        torch.Size([2, 4])
    """

    kind: str
    row_nbytes: int
    columns: tuple[Column, ...]
    fields: tuple[Field, ...]
    digest: str

    def __init__(self, tree: Node, ignore: frozenset[str]) -> None:
        """Use `of` or `from_json`."""
        self._tree = tree
        self._ignore = ignore
        form = "leaf" if isinstance(tree, Leaf) else tree.form
        self.kind = _KINDS.get(form, "pytree")
        self.row_nbytes, self.columns, self.fields, self._order = pack(tree)
        if not self.fields:
            raise LayoutError("The record holds no tensor; write records with at least one.")
        canonical = json.dumps(self._plain(canonical=True), sort_keys=True, separators=(",", ":"))
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()
        self._numbers = {field.key: number for number, field in enumerate(self.fields)}
        self._stager = Stager(tree, self.fields, self.row_nbytes, ignore)
        self._builder = Builder(tree, self.fields, self.columns, self.row_nbytes, self._order)

    @classmethod
    def of(cls, data: Any, *, batched: bool, ignore: frozenset[str] = frozenset()) -> RecordLayout:
        """Reads the layout off data.

        Args:
            data: TensorDict, tensorclass, tensor (or numpy array, number), or dict, tuple, list of those.
            batched: True if dimension 0 of every value is the batch, False if data is one record.
            ignore: keys of a root TensorDict that are never stored.

        Raises:
            LayoutTypeError: something in it cannot be stored; the message names its key.
            LayoutError: a value without a batch dimension, or no tensor at all.

        Example:
            >>> import torch
            >>> RecordLayout.of({"a": torch.zeros(5, 300)}, batched=True).columns[0].nbytes
            1200
        """
        return cls(describe(data, batched, frozenset(ignore)), frozenset(ignore))

    @staticmethod
    def stack(records: Sequence[Any]) -> Any:
        """Stacks records of one structure into batched data, on the device where they are.

        Args:
            records: one record or more.

        Returns:
            The records' structure; every tensor has a new dimension 0.

        Raises:
            RuntimeError: there is no record.
            LayoutError: a record differs from the first; the message says which and how.

        Example:
            >>> import torch
            >>> RecordLayout.stack([{"a": torch.tensor(1)}, {"a": torch.tensor(2)}])
            {'a': tensor([1, 2])}
        """
        if not len(records):
            raise RuntimeError(f"Expected at least one element in extend. Got {records!r}; give one record or more.")
        tree = describe(records[0], batched=False)
        leaves = list(leaves_of(tree))
        gathered: list[list[torch.Tensor]] = [[] for _ in leaves]
        for position, record in enumerate(records):
            try:
                tensors = flatten(tree, record)
                for (path, leaf), tensor, group in zip(leaves, tensors, gathered):
                    _check_alike(path, leaf, tensor)
                    group.append(tensor)
            except (LayoutError, LayoutKeyError, LayoutTypeError) as error:
                raise type(error)(f"Record {position} of {len(records)} differs from record 0: {error}") from error
        device = getattr(records[0], "device", None)
        return assemble(tree, iter([torch.stack(group) for group in gathered]), torch.Size((len(records),)), device)

    def to_json(self) -> str:
        """The layout as text, from which another process makes the same one.

        Example:
            >>> import torch
            >>> layout = RecordLayout.of(torch.zeros(3), batched=False)
            >>> RecordLayout.from_json(layout.to_json()) == layout
            True
        """
        return json.dumps(self._plain(canonical=False), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RecordLayout:
        """The layout of `to_json`'s text. A tensorclass is imported only when the first record is built.

        Raises:
            LayoutError: the text is not such a layout, or of another version.

        Example:
            >>> RecordLayout.from_json('{"version": 1, "ignore": [], "tree": ["int64", [2]]}').row_nbytes
            16
        """
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise LayoutError(f"Not the JSON of a record layout ({error}); write it with to_json().") from error
        if not isinstance(plain, dict) or plain.keys() != {"version", "ignore", "tree"}:
            raise LayoutError(f"Not a record layout: {text[:80]!r}; write it with to_json().")
        if plain["version"] != _VERSION:
            raise LayoutError(
                f"The record layout has version {plain['version']!r}, this code reads {_VERSION}; "
                "open it with the version of shmreplay that wrote it."
            )
        ignore = plain["ignore"]
        if not isinstance(ignore, list) or any(not isinstance(key, str) for key in ignore):
            raise LayoutError(f"Not a list of ignored keys: {ignore!r}; write the layout with to_json().")
        return cls(node_from(plain["tree"]), frozenset(ignore))

    def _plain(self, canonical: bool) -> dict:
        return {"version": _VERSION, "ignore": sorted(self._ignore), "tree": self._tree.plain(canonical)}

    def batch_size_of(self, data: Any) -> int:
        """The number of records in batched data.

        Raises:
            RuntimeError: there is none.
            LayoutError: the data have no batch dimension.

        Example:
            >>> import torch
            >>> RecordLayout.of(torch.zeros(3), batched=False).batch_size_of(torch.zeros(7, 3))
            7
        """
        if isinstance(self._tree, Branch) and self.kind != "pytree":
            shape = getattr(data, "batch_size", None)
            if shape is None:
                raise LayoutTypeError(f"Expected a {self.kind} of records, found a {type(data).__name__}.")
        else:
            shape = flatten(self._tree, data, self._ignore)[0].shape
        return _checked_count(shape, data)

    def stage(self, data: Any, *, batched: bool) -> Staged:
        """Packs data into rows and columns, after checking all of it. Values keep every bit and are never cast.

        CPU and CUDA tensors, contiguous or not; tensors that require grad are detached.

        Args:
            data: records of this layout.
            batched: True for [n, ...] values, False for one record.

        Returns:
            The bytes. Copy them out before this thread stages again: the rows are in a buffer that is used again.

        Raises:
            LayoutKeyError: a key is missing or unexpected.
            LayoutTypeError: another structure, or something that cannot be stored.
            LayoutError: another dtype, shape or length.
            RuntimeError: batched data without a record.

        Example:
            >>> import torch
            >>> layout = RecordLayout.of(torch.zeros(2, dtype=torch.uint8), batched=False)
            >>> layout.stage(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8), batched=True).rows.tolist()
            [[1, 2, 0, 0, 0, 0, 0, 0], [3, 4, 0, 0, 0, 0, 0, 0]]
        """
        staged = self._stager.stage_plain(data, batched)
        return self._stage_any(data, batched) if staged is None else staged

    def _stage_any(self, data: Any, batched: bool) -> Staged:
        tensors = flatten(self._tree, data, self._ignore)
        n = 1
        if batched:
            has_batch_size = self.kind in ("tensordict", "tensorclass")
            n = _checked_count(data.batch_size if has_batch_size else tensors[0].shape, data)
        return self._stager.stage_tensors([tensors[i] for i in self._order], n, batched)

    def set_aside(self) -> None:
        """Let this thread's next `stage` leave the buffer of its last one alone.

        For a call from a signal handler, which may run while the thread still copies what it staged.
        """
        self._stager.set_aside()

    def allocate(self, n: int) -> Chunk:
        """Fresh memory for n records, into which bytes are gathered for `build`.

        Example:
            >>> import torch
            >>> RecordLayout.of(torch.zeros(3), batched=False).allocate(5).rows.shape
            (5, 16)
        """
        return self._builder.allocate(n)

    def build(self, chunk: Chunk, *, names: Sequence[str | None] | None = None) -> Any:
        """The records of a filled chunk in the user's structure: contiguous private CPU tensors, batch size [n, ...].

        The chunk is used up: the large fields of the result are its memory.

        Args:
            chunk: from `allocate`, filled.
            names: dimension names for the root TensorDict.

        Raises:
            LayoutError: the class of the records cannot be imported here.
            LayoutTypeError: names for something that is not a TensorDict.

        Example:
            >>> import torch
            >>> layout = RecordLayout.of((torch.tensor(1), torch.tensor(2.5)), batched=False)
            >>> chunk = layout.allocate(1)
            >>> chunk.rows[:] = layout.stage((torch.tensor(1), torch.tensor(2.5)), batched=False).rows
            >>> layout.build(chunk)
            (tensor([1]), tensor([2.5000]))
        """
        data = self._builder.build(chunk)
        if names is not None:
            if self.kind not in ("tensordict", "tensorclass"):
                raise LayoutTypeError(f"A {self.kind} has no dimension names; leave names={names!r} out.")
            data.names = list(names)
        return data

    def outline(self, n: int, more: dict[str, Any] = MappingProxyType({})) -> Outline:
        """The structure of n records whose bytes are to come: fill its chunk, then `finish` it.

        Args:
            n: number of records.
            more: further root entries ([n] tensors), put in where that is simple; `has_more` tells.

        Example:
            >>> import torch
            >>> layout = RecordLayout.of(torch.tensor(1), batched=False)
            >>> outline = layout.outline(2)
            >>> outline.chunk.rows[:] = layout.stage(torch.tensor([1, 2]), batched=True).rows
            >>> layout.finish(outline)
            tensor([1, 2])
        """
        return self._builder.outline(n, more)

    def finish(self, outline: Outline) -> Any:
        """The data of an outline whose chunk was filled; equal to what `build` makes of the chunk."""
        return self._builder.finish(outline)

    def build_one(self, chunk: Chunk) -> Any:
        """The single record of a chunk of one, without the batch dimension.

        Raises:
            LayoutError: the chunk holds another number of records.

        Example:
            >>> import torch
            >>> layout = RecordLayout.of(torch.tensor([1, 2]), batched=False)
            >>> chunk = layout.allocate(1)
            >>> chunk.rows[:] = layout.stage(torch.tensor([1, 2]), batched=False).rows
            >>> layout.build_one(chunk)
            tensor([1, 2])
        """
        if chunk.n != 1:
            raise LayoutError(f"Expected a chunk of one record, found {chunk.n}; use build().")
        return self._builder.build_one(chunk)

    def field_index(self, key: str | tuple) -> int:
        """The position in `fields` of a key: a str or a tuple of keys.

        Raises:
            LayoutKeyError: there is no such field; the message lists those there are.

        Example:
            >>> import torch
            >>> RecordLayout.of({"b": torch.zeros(1), "a": torch.zeros(1)}, batched=False).field_index("b")
            1
        """
        path = _plain_path(key)
        number = self._numbers.get(path)
        if number is None:
            known = [field.key[0] if len(field.key) == 1 else field.key for field in self.fields]
            raise LayoutKeyError(f"The records have no tensor under {show(path)}; they have {known}.")
        return number

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, RecordLayout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        return RecordLayout.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return f"RecordLayout({self.kind}, fields={len(self.fields)}, row_nbytes={self.row_nbytes})"


def _plain_path(key: Any) -> tuple:
    """("a", ("b",)) and "a" as flat tuples, as TensorDict reads nested keys."""
    if not isinstance(key, tuple):
        return (key,)
    return tuple(part for inner in key for part in _plain_path(inner))


def _checked_count(shape: torch.Size, data: Any) -> int:
    if not len(shape):
        raise LayoutError(
            f"Expected batched data with a leading dimension, found a {type(data).__name__} of batch size []; write "
            "one record with add(), or unsqueeze(0) it."
        )
    if not shape[0]:
        raise RuntimeError(
            f"Expected at least one element in extend. Got a {type(data).__name__} of batch size {list(shape)}; "
            "leave the call out when there is nothing to write."
        )
    return shape[0]


def _check_alike(path: tuple, leaf: Leaf, tensor: torch.Tensor) -> None:
    if tensor.dtype is not leaf.dtype or tensor.shape != leaf.shape:
        raise LayoutError(
            f"expected {leaf.dtype} {tuple(leaf.shape)} under {show(path)}, found {tensor.dtype} "
            f"{tuple(tensor.shape)}; give every record the same dtypes and shapes."
        )

