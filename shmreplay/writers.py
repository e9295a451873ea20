"""Writers: which slots a write takes."""

import numpy as np
import torch
from tensordict import is_tensor_collection, is_tensorclass

from .state.ring import Writing

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter", "Writer"]


def _as_slots(index) -> np.ndarray:
    """Indices as int64 numpy, of any shape."""
    if isinstance(index, torch.Tensor):
        index = index.cpu().numpy()
    return np.asarray(index).astype(np.int64)


class Writer:
    """Base of the writers; subclass it with TorchRL's signatures.

    Source: ``torchrl.data.Writer``.
    """

    _storage = None
    _rng = None

    def __init__(self, compilable: bool = False):
        self._compilable = compilable

    def register_storage(self, storage) -> None:
        """Write to ``storage`` from now on."""
        self._storage = storage

    @property
    def tracks_generations(self) -> bool:
        """Whether samples carry ``index_generation``."""
        return False

    def generations_of(self, index) -> torch.Tensor:
        """Generations of the slots ``index``; -1 everywhere for a writer that does not track them."""
        index = torch.as_tensor(index[0] if isinstance(index, tuple) else index)
        return torch.full(index.shape, -1, dtype=torch.int64, device=index.device)

    def add(self, data) -> int:
        """Write one record; returns its slot."""
        raise NotImplementedError

    def extend(self, data) -> torch.Tensor:
        """Write several records; returns their slots."""
        raise NotImplementedError

    def _empty(self, empty_write_count: bool = True) -> None:
        self._storage._empty(empty_write_count)

    def state_dict(self) -> dict:
        """Cursor, write count and generations."""
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        """The storage restores what it owns; nothing of its own."""

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_rng": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """Writes slot after slot, and over the oldest when the storage is full.

    Args:
        compilable (bool): accepted, no effect.
        track_generations (bool): samples carry ``index_generation``, and ``generations_of`` answers. The generations
            themselves are the storage's, and always kept: any write or ``empty()`` through any buffer on the storage,
            in any process, advances them.

    Source: ``torchrl.data.RoundRobinWriter``; there, generations are process-local.

    Example:
        >>> import torch
        >>> from shmreplay import LazyTensorStorage, ReplayBuffer, RoundRobinWriter
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True))
        >>> index = rb.extend(torch.arange(4))
        >>> _ = rb.extend(torch.arange(4, 6))
        >>> rb.writer.generations_of(index)
        tensor([1, 1, 0, 0])
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False):
        super().__init__(compilable)
        self._track_generations = bool(track_generations)
        self._writing = Writing()

    @property
    def tracks_generations(self) -> bool:
        return self._track_generations

    def generations_of(self, index) -> torch.Tensor:
        """How often each slot was written before, and emptied: 0 after the first write, one more for each.

        Args:
            index: int, tensor of any shape, or tuple (its first entry counts).

        Returns:
            int64 tensor of the index's shape, on its device; -1 for never-written and out-of-range slots.
        """
        if not self._track_generations or self._storage is None:
            return super().generations_of(index)
        if isinstance(index, tuple):
            index = index[0]
        device = index.device if isinstance(index, torch.Tensor) else "cpu"
        slots = _as_slots(index)
        found = self._storage.generations(slots.reshape(-1)).reshape(slots.shape)
        return torch.as_tensor(found).to(device)

    def add(self, data) -> int:
        return int(self._storage.write(data, self._writing, batched=False)[0])

    def extend(self, data) -> torch.Tensor:
        slots = torch.from_numpy(self._storage.write(data, self._writing, batched=True))
        device = getattr(data, "device", None)
        return slots.to(device) if isinstance(device, torch.device) and device.type != "cpu" else slots

    def write_at(self, index, data):
        """Write to named slots, without moving the cursor; their generations advance, ``write_count`` too.

        Args:
            index: an int with one record, or a tensor of slots (int64 [n]) with a batch; a slot named twice is
                written twice.

        Returns:
            ``index``.

        Raises:
            IndexError: a slot out of range.
            LayoutError: the batch and the index differ in length.
        """
        storage = self._storage
        single = isinstance(index, (int, np.integer)) or (isinstance(index, torch.Tensor) and index.ndim == 0)
        batched = not single
        if single and is_tensor_collection(data) and data.ndim and len(data) == 1 and storage.ndim == 1:
            batched = True
        slots = np.ascontiguousarray(_as_slots(index).reshape(-1))
        storage.write(data, self._writing, batched=batched, slots=slots)
        return index

    @property
    def _cursor(self) -> int:
        return self._storage.cursor

    @property
    def _write_count(self) -> int:
        return self._storage.write_count

    def state_dict(self) -> dict:
        storage = self._storage
        generation = storage.generations(np.arange(storage.max_size if storage.max_size < 1 << 31 else 0))
        state = {"_cursor": self._cursor, "_write_count": self._write_count}
        if self._track_generations:
            state["_generation"] = torch.from_numpy(generation)
        return state

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_writing": Writing()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(cursor={self._cursor}, full_storage={self._storage._is_full})"


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """A round-robin writer for TensorDict records: samples carry ``index`` (and ``index_generation`` if tracked).

    Source: ``torchrl.data.TensorDictRoundRobinWriter``, which stores ``index`` in the records and in the caller's
    TensorDict; here it is neither stored nor written there.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shmreplay import LazyTensorStorage, ReplayBuffer, TensorDictRoundRobinWriter
        >>> writer = TensorDictRoundRobinWriter(track_generations=True)
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), writer=writer, batch_size=2)
        >>> _ = rb.extend(TensorDict({"obs": torch.zeros(4, 3)}, [4]))
        >>> sorted(rb.sample().keys())
        ['index', 'index_generation', 'obs']
    """

    def labels(self, data) -> bool:
        """Whether samples like ``data`` carry the slot and its generation."""
        return is_tensor_collection(data) and not is_tensorclass(data)
