"""Batches prepared before their records are drawn.

A sample that waits is woken on a core whose caches are cold. So whatever does not depend on the records - the places to
draw, the memory, the structure of the batch - is made before the wait; after it, places become slots, bytes are
gathered and copied to where they are expected. Samples that need not wait go the same way.
"""

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection, is_tensorclass
from tensordict.utils import expand_as_right

from ..shm.points import point

__all__ = ["Draft", "labelled"]


class Draft:
    """One uniform batch of ``n`` records of a byte storage; made by one call, filled by it, perhaps more than once."""

    __slots__ = ("_data", "_generations", "_outline", "_places", "_slots", "_storage", "info")

    def __init__(self, storage, n: int, tracked: bool, wants_labels: bool, labels):
        self._storage, self._places = storage, storage.uniform(n)
        self._slots = np.empty(n, np.int64)
        self.info = {"index": torch.from_numpy(self._slots)}
        self._generations = None
        if tracked:
            self._generations = np.empty(n, np.int64)
            self.info["index_generation"] = torch.from_numpy(self._generations)
        self._outline = storage.outline(n, self.info if wants_labels else {})
        self._data = self._outline.data
        if wants_labels and not self._outline.has_more and labels(self._data):
            self._data = labelled(self._data, self.info)

    def fill(self, redraw) -> tuple:
        """Draw and read: (data, info, epoch)."""
        storage, slots = self._storage, self._storage.slots_at(self._places)
        point("shmreplay.drawn")
        _, slots, generations, epoch = storage.read(slots, redraw, self._outline.chunk)
        storage.finish(self._outline)
        self._slots[:] = slots
        if self._generations is not None:
            self._generations[:] = generations
        return self._data, self.info, epoch


def labelled(data, info: dict):
    """Set the info's entries in a sampled TensorDict."""
    if not is_tensor_collection(data):
        raise RuntimeError("Cannot include info in non-tensordict data")
    if is_tensorclass(data):
        return data
    if type(data) is TensorDict and data.ndim == 1 and not data.is_locked:
        for key, value in info.items():
            data._set_str(key, value, validated=True, inplace=False, non_blocking=False)
        return data
    for key, value in info.items():
        data.set(key, expand_as_right(value, data) if value.ndim < data.ndim else value)
    return data
