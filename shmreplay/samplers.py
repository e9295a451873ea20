"""Samplers: which slots a batch is made of."""

import torch

from .errors import BudgetError

__all__ = ["RandomSampler", "Sampler"]

EMPTY = "Cannot sample from an empty storage."


class Sampler:
    """Base of the samplers; subclass it with ``sample(storage, batch_size) -> (index, info)``.

    ``sample`` runs in the caller's room, never under the lock; the indices it returns are stamped and validated by
    the buffer, and drawn again where a record was being written.

    Source: ``torchrl.data.Sampler``.
    """

    requires_shared_state = False
    _rng = None
    ran_out = False

    def sample(self, storage, batch_size: int):
        """Slots (int64 tensor) and an info dict."""
        raise NotImplementedError

    def needed_size(self, batch_size: int) -> int:
        """Records that must be there for a sample of ``batch_size``."""
        return 1

    def can_sample(self, storage, batch_size: int) -> bool:
        """Whether ``storage`` holds enough records."""
        return len(storage) >= self.needed_size(batch_size)

    def add(self, index) -> None:
        """Called after ``add`` wrote ``index``."""

    def extend(self, index) -> None:
        """Called after ``extend`` wrote ``index``."""

    def _empty(self) -> None:
        """Called by ``empty()``."""

    def state_dict(self) -> dict:
        """State beside the shared one."""
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore ``state_dict``."""

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_rng": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RandomSampler(Sampler):
    """Draws slots uniformly, with replacement.

    Each process draws from a stream of its own: torch's default generator where the buffer was made (so
    ``torch.manual_seed`` holds there), a stream derived from its seed and the process's incarnation elsewhere.
    ``rb.set_rng(generator)`` in a process reproduces exactly.

    Raises:
        RuntimeError: nothing was written yet.

    Source: ``torchrl.data.RandomSampler``; forked TorchRL workers draw identical batches.

    Example:
        >>> import torch
        >>> from shmreplay import LazyTensorStorage, RandomSampler, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), sampler=RandomSampler(), batch_size=3)
        >>> _ = rb.extend(torch.arange(4))
        >>> rb.sample().shape
        torch.Size([3])
    """

    def sample(self, storage, batch_size: int) -> tuple[torch.Tensor, dict]:
        if not len(storage):
            raise BudgetError(EMPTY)
        return storage._rand_given_ndim(batch_size), {}
