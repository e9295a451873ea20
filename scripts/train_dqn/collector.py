"""A collector process: acts in one environment and writes what it saw."""

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

from train_dqn import policy
from train_dqn.board import Board
from train_dqn.family import Family
from train_dqn.options import Options
from train_dqn.records import Batcher, NStep

_NAP = 0.25  # longest wait in one call, so that the stop word and a dead supervisor are noticed in time


def collect(
    family: Family, board: Board, number: int, buffer: object, network: torch.nn.Module, options: Options
) -> None:
    """Collects until the run is over or the supervisor is gone."""
    environment = gymnasium.make("CartPole-v1")
    seed = np.random.SeedSequence([options.seed, number])
    rng = np.random.default_rng(seed)
    folding, batcher = NStep(options.n_step, options.gamma), Batcher(options.extend_size, number)
    observation, _ = environment.reset(seed=int(seed.generate_state(1)[0]))
    episode_return, steps, explore = 0.0, 0, 1.0
    while True:
        if steps % options.extend_size == 0:
            explore = policy.epsilon(board.steps, number, options)
        action = policy.choose(network, observation, explore, rng)
        after, reward, terminated, truncated, _ = environment.step(action)
        steps += 1
        episode_return += reward
        board.count_steps(number, 1)
        rows = folding.push(observation, action, reward, after, terminated=terminated, truncated=truncated)
        for batch in filter(None.__ne__, map(batcher.add, rows)):
            if not write(family, board, number, buffer, batch):
                return
        observation = after
        if terminated or truncated:
            board.finish_episode(number, episode_return)
            observation, _ = environment.reset()
            episode_return = 0.0


def write(family: Family, board: Board, number: int, buffer: object, batch: TensorDict) -> bool:
    """Writes a batch and acknowledges it; returns False, with nothing written, where the run is over."""
    while not board.stopped and family.alive():
        board.begin_extend(number, buffer.write_count)
        try:
            buffer.extend(batch, timeout=_NAP)
        except TimeoutError:
            continue
        board.acknowledge(number)
        return True
    return False
