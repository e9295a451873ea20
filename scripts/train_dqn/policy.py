"""The network, how it explores and how it learns."""

import copy

import numpy as np
import torch
from torch import nn

from train_dqn.options import Options


def make_network(hidden: int) -> nn.Sequential:
    """Returns the action-value network: 4 observations in, 2 values out."""
    return nn.Sequential(
        nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
    )


def epsilon(steps: int, collector: int, options: Options) -> float:
    """Returns how often a collector acts at random once all collectors together took `steps` steps.

    Falls linearly from 1 to a floor that differs between collectors, so that they do not all see the same states.
    """
    floor = (0.005, 0.01, 0.015, 0.02)[collector % 4]
    return max(floor, 1.0 - steps / options.epsilon_steps)


@torch.inference_mode()
def choose(network: nn.Module, observation: np.ndarray, explore: float, rng: np.random.Generator) -> int:
    """Returns an action for one observation, at random with probability `explore`."""
    if rng.random() < explore:
        return int(rng.integers(2))
    return int(network(torch.from_numpy(observation)).argmax())


class DoubleDQN:
    """Double DQN with a slowly following target network. Only the learner process holds one."""

    def __init__(self, start: nn.Module, options: Options) -> None:
        self.online = copy.deepcopy(start)
        self._target = copy.deepcopy(start).requires_grad_(False)
        self._options = options
        self._weights = list(self.online.parameters())
        self._target_weights = list(self._target.parameters())
        self._optimizer = torch.optim.Adam(self._weights, lr=options.learning_rate, fused=True)

    def set_learning_rate(self, factor: float) -> None:
        """Sets the learning rate to `factor` times the one of the options."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.learning_rate * factor

    def update(self, batch: object) -> float:
        """Makes one step on a batch of records and returns its loss."""
        with torch.no_grad():
            best = self.online(batch["next_observation"]).argmax(1, keepdim=True)
            future = self._target(batch["next_observation"]).gather(1, best).squeeze(1)
            wanted = batch["reward"] + batch["discount"] * future
        value = self.online(batch["observation"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, wanted)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._weights, 10.0)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._target_weights, self._weights, self._options.target_rate)
        return float(loss.detach())

    def publish(self, shared: nn.Module) -> None:
        """Copies the weights into the module that the collectors read.

        A collector may act on a mixture of two versions for one step; that is exploration, not an error.
        """
        with torch.no_grad():
            torch._foreach_copy_(list(shared.parameters()), self._weights)
