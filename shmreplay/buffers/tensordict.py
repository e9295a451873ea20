"""The buffer whose samples are TensorDicts with their slots in them."""

from tensordict import TensorDictBase

from ..writers import TensorDictRoundRobinWriter
from .replay_buffer import ReplayBuffer

__all__ = ["TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of TensorDicts: samples carry ``index`` and, if tracked, ``index_generation``.

    Args: as :class:`ReplayBuffer`; the default writer is ``TensorDictRoundRobinWriter()``.
        priority_key (str): kept for prioritized samplers. Default ``"td_error"``.

    Source: ``torchrl.data.TensorDictReplayBuffer``; there, ``extend`` also sets ``index`` in the caller's TensorDict.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shmreplay import LazyTensorStorage, TensorDictReplayBuffer
        >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=5)
        >>> _ = rb.extend(TensorDict({"a": torch.ones(10, 3), ("b", "c"): torch.zeros(10, 1)}, [10]))
        >>> rb.sample(3)["index"].shape
        torch.Size([3])
    """

    _label_samples = True
    _default_writer = TensorDictRoundRobinWriter

    def __init__(self, *, priority_key: str = "td_error", **kwargs):
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def extend(self, tensordicts, *, update_priority: bool | None = None, timeout: float | None = None, cancel_event=None):
        """Write a batch of TensorDicts; see :meth:`ReplayBuffer.extend`.

        Args:
            tensordicts (TensorDict): [n, ...].
            update_priority (bool, optional): without effect here: this sampler has no priorities.

        Returns:
            int64 tensor [n] of slots.

        Raises:
            ValueError: not a TensorDict.
        """
        if not isinstance(tensordicts, TensorDictBase):
            raise ValueError(
                f"{type(self).__name__} only accepts TensorDictBase subclasses. tensorclasses and other types are not "
                "compatible with that class. Please use a regular `ReplayBuffer` instead."
            )
        return super().extend(tensordicts, timeout=timeout, cancel_event=cancel_event)

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"priority_key": self.priority_key}

    def __setstate__(self, state: dict) -> None:
        self.priority_key = state.get("priority_key", "td_error")
        super().__setstate__(state)

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
        *,
        wait: bool = False,
        timeout: float | None = None,
        cancel_event=None,
    ):
        """Draw a batch; see :meth:`ReplayBuffer.sample`.

        Args:
            include_info (bool, optional): False leaves the info out of the TensorDict.
        """
        data, info = self._sampled(batch_size, wait, timeout, cancel_event)
        if include_info is False:
            data = data.exclude(*(key for key in info if isinstance(key, str)))
        return (data, info) if return_info else data


