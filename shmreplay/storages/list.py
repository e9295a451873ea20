"""A storage of Python objects: unshared, of any content."""

import numpy as np
import torch
from tensordict import is_tensor_collection, is_tensorclass
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import LayoutTypeError
from .base import NEVER_STORED, Storage

__all__ = ["ListStorage"]


class _Items(list):
    """Staged records, one object each."""

    @property
    def n(self) -> int:
        return len(self)


class ListStorage(Storage):
    """Keeps records as Python objects in this process; the default storage.

    Args:
        max_size (int): number of records. Defaults to 1,000.

    Raises:
        RuntimeError: on ``share()``; the message names the storages that can be shared.

    Source: ``torchrl.data.ListStorage``. Records are private copies here: later changes of what was written do not
    reach the buffer.

    Example:
        >>> import torch
        >>> from shmreplay import ListStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=ListStorage(4))
        >>> rb.extend(torch.arange(3))
        tensor([0, 1, 2])
        >>> rb[1]
        tensor(1)
    """

    def __init__(self, max_size: int = 1_000, *, compilable: bool = False, device=None):
        super().__init__(max_size, compilable=compilable)
        self._records = {}

    def stage(self, data, *, batched: bool):
        if not batched:
            return _Items([_copy_in(data)])
        if isinstance(data, list):
            items = [_copy_in(item) for item in data]
        elif is_tensor_collection(data):
            if not data.ndim:
                raise RuntimeError(f"Expected at least one element in extend. Got {data=}")
            items = list(_copy_in(data).unbind(0))
        elif isinstance(data, torch.Tensor):
            if not data.ndim:
                raise RuntimeError(f"Expected at least one element in extend. Got {data=}")
            items = list(data.detach().clone().unbind(0))
        else:
            items = _unbind_tree(data)
        if not items:
            raise RuntimeError(f"Expected at least one element in extend. Got {data=}")
        return _Items(items)

    def _put(self, where, staged, offset: int, n: int) -> None:
        slots = range(where.start, where.stop) if isinstance(where, slice) else where.tolist()
        self._records.update(zip(slots, staged[offset : offset + n]))

    def _gather(self, slots: np.ndarray, chunk=None):
        return [self._records.get(slot) for slot in slots.tolist()]

    def _regather(self, chunk, at: np.ndarray, slots: np.ndarray) -> None:
        for position, slot in zip(at.tolist(), slots.tolist()):
            chunk[position] = self._records.get(slot)

    def _keep(self, chunk, kept: np.ndarray):
        return [chunk[position] for position in kept.tolist()]

    def build(self, chunk):
        """Stack TensorDicts, tensors and numbers (also inside pytrees); other objects come as a list."""
        return collate_list(chunk)

    def build_one(self, chunk):
        return _copy(chunk[0])

    def _built(self, chunk):
        return [_copy(record) for record in chunk]

    def _records_content(self, claimed: int):
        return {slot: _copy(record) for slot, record in self._records.items()}

    def _take_records(self, records, claimed: int) -> None:
        self._records = records
        self.ring.claimed(claimed)

    def __repr__(self) -> str:
        return f"ListStorage(max_size={self.max_size}, len={len(self)})"


def _copy_in(record):
    if is_tensor_collection(record) and not is_tensorclass(record):
        record = record.exclude(*NEVER_STORED)
    return _copy(record)


def _copy(record):
    if is_tensor_collection(record):
        return record.clone() if is_tensorclass(record) or not record.is_locked else record.clone().unlock_()
    if isinstance(record, torch.Tensor):
        return record.detach().clone()
    if isinstance(record, np.ndarray):
        return record.copy()
    if isinstance(record, (tuple, list, dict)):
        leaves, spec = tree_flatten(record)
        return tree_unflatten([_copy(leaf) for leaf in leaves], spec)
    return record


def _unbind_tree(data) -> list:
    leaves, spec = tree_flatten(data)
    if not leaves:
        raise RuntimeError(f"Expected at least one element in extend. Got {data=}")
    lengths = {len(leaf) if hasattr(leaf, "__len__") else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        raise LayoutTypeError(f"the leaves of a batch must have one length. Got {sorted(map(str, lengths))}")
    rows = zip(*([_copy(item) for item in leaf] for leaf in leaves))
    return [tree_unflatten(list(row), spec) for row in rows]


def collate_list(records: list):
    """One batch of a list of records. Source: TorchRL's default collate of ``ListStorage``."""
    if not records:
        return records
    first = records[0]
    if is_tensor_collection(first) or isinstance(first, torch.Tensor):
        return torch.stack(list(records), 0)
    if isinstance(first, (tuple, list, dict)):
        spec = tree_flatten(first)[1]
        columns = zip(*(tree_flatten(record)[0] for record in records))
        return tree_unflatten([collate_list(list(column)) for column in columns], spec)
    if isinstance(first, (bool, int, float, complex, np.ndarray, np.generic)):
        return torch.as_tensor(np.asarray(records))
    return list(records)
