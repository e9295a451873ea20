"""The replay buffers."""

from .handle import attach
from .rate_limited import RateLimitedReplayBuffer
from .replay_buffer import ReplayBuffer
from .tensordict import TensorDictReplayBuffer

__all__ = ["RateLimitedReplayBuffer", "ReplayBuffer", "TensorDictReplayBuffer", "attach"]
