"""The buffer that holds a ratio of samples to inserts."""

from .replay_buffer import ReplayBuffer

__all__ = ["RateLimitedReplayBuffer"]


class RateLimitedReplayBuffer(ReplayBuffer):
    """A replay buffer with a cumulative sample-to-insert ratio limit, across processes.

    At most ``samples_per_insert`` records are sampled for each record inserted. The limit counts over the buffer's
    life, not over its occupancy. Budget is reserved atomically, given back when a sample fails, and when the process
    that reserved it dies.

    Args: as :class:`ReplayBuffer`; ``samples_per_insert`` is required.

    Raises:
        TypeError, ValueError: ``samples_per_insert`` is not a finite positive number; ``prefetch`` was asked.

    Source: ``torchrl.data.RateLimitedReplayBuffer``.

    Example:
        >>> import torch
        >>> from shmreplay import LazyTensorStorage, RateLimitedReplayBuffer
        >>> rb = RateLimitedReplayBuffer(storage=LazyTensorStorage(8), batch_size=2, samples_per_insert=1.0)
        >>> _ = rb.extend(torch.arange(2))
        >>> rb.sample(wait=True, timeout=1.0).shape
        torch.Size([2])
        >>> rb.can_sample()
        False
    """

    def __init__(self, *, samples_per_insert, prefetch: int | None = None, **kwargs):
        if prefetch:
            raise ValueError("RateLimitedReplayBuffer does not support prefetching: pass no prefetch.")
        if samples_per_insert is None:
            raise TypeError("samples_per_insert must be a finite positive number. Got None.")
        super().__init__(samples_per_insert=samples_per_insert, **kwargs)
