"""The learner process: samples, checks what it got, learns and publishes weights."""

from fractions import Fraction

import torch

from train_dqn.board import Board
from train_dqn.family import Family
from train_dqn.options import Options
from train_dqn.policy import DoubleDQN
from train_dqn.records import torn

_NAP = 0.25  # longest wait in one call, so that the stop word and a dead supervisor are noticed in time


def over_issued(stats: dict) -> int:
    """Returns how many samples the buffer gave out beyond ratio x inserts, by one reading of its counters."""
    ratio = Fraction(repr(float(stats["target_samples_per_insert"])))  # 0.3 means three tenths, not the float near it
    allowed = ratio * stats["write_count"]
    return max(0, stats["samples_returned"] - int(allowed))


def learn(family: Family, board: Board, buffer: object, network: torch.nn.Module, options: Options) -> None:
    """Learns until the run is over or the supervisor is gone."""
    torch.manual_seed(options.seed)
    learner = DoubleDQN(network, options)
    updates = samples = torn_count = over_count = 0
    while not board.stopped and family.alive():
        try:
            batch = buffer.sample(wait=True, timeout=_NAP)
        except TimeoutError:
            continue
        over_count += over_issued(buffer.stats())
        torn_count += torn(batch)
        loss = learner.update(batch)
        updates += 1
        samples += len(batch)
        if updates % options.publish_every == 0:
            learner.set_learning_rate(max(0.1, 1.0 - updates / 60_000))
            learner.publish(network)
        board.note_learner((updates, samples, torn_count, over_count, updates, loss))
