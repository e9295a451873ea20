"""Experience replay shared by many processes, with TorchRL's replay-buffer API."""

from .buffers import RateLimitedReplayBuffer, ReplayBuffer, TensorDictReplayBuffer, attach
from .errors import (
    BudgetError, ClosedError, CorruptError, ForkError, LayoutError, LayoutKeyError, LayoutTypeError, MembersFullError,
    SampleTimeoutError, ShmReplayError, SpaceError, VersionError,
)  # fmt: skip
from .samplers import RandomSampler, Sampler
from .shm.freeing import sweep as cleanup_stale
from .storages import LazyMemmapStorage, LazyTensorStorage, ListStorage, Storage, TensorStorage
from .writers import RoundRobinWriter, TensorDictRoundRobinWriter, Writer

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "ClosedError",
    "CorruptError",
    "ForkError",
    "LayoutError",
    "LayoutKeyError",
    "LayoutTypeError",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MembersFullError",
    "RandomSampler",
    "RateLimitedReplayBuffer",
    "ReplayBuffer",
    "RoundRobinWriter",
    "SampleTimeoutError",
    "Sampler",
    "ShmReplayError",
    "SpaceError",
    "Storage",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "VersionError",
    "Writer",
    "attach",
    "cleanup_stale",
]
