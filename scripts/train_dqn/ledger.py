"""The final account: is every acknowledged record there, whole and once, and was nothing over-issued?"""

import dataclasses

import numpy as np

from train_dqn.board import Board
from train_dqn.options import Options
from train_dqn.records import torn


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What the account found. All of `faults` must be 0."""

    sampled: int
    kept: int
    owed: int
    looks: int
    torn: int
    lost: int
    doubled: int
    over_issued: int
    unacknowledged: int
    unacknowledged_limit: int

    @property
    def faults(self) -> dict[str, int]:
        """Returns the counts that must be 0, by name."""
        beyond = max(0, self.unacknowledged - self.unacknowledged_limit)
        return {
            "torn": self.torn,
            "lost": self.lost,
            "doubled": self.doubled,
            "over-issued": self.over_issued,
            "unaccounted": beyond + max(0, -self.unacknowledged),
        }


def owed_sequences(board: Board, collector: int, oldest: int, size: int) -> np.ndarray:
    """Returns the sequences of a collector's acknowledged records that cannot have been overwritten.

    Records get their slots in the order of reservation, and no more reservations precede a record than
    `write_count` said before its `extend`. So a record whose `extend` began at `write_count` or later than `oldest`
    is among the newest `capacity` reservations.
    """
    numbers, before = board.logged_extends(collector)
    return (numbers[before >= oldest, None] * size + np.arange(size)).ravel()


def missing(present: np.ndarray, owed: np.ndarray, acknowledged: int) -> int:
    """Returns how many acknowledged sequences of one collector should be present and are not.

    A collector's records are overwritten in the order of their sequence: besides those that are owed, all from the
    oldest present one on must be there.
    """
    follow = np.arange(present.min(), acknowledged) if len(present) else present
    return int(np.setdiff1d(np.union1d(owed, follow), present).size)


def audit(buffer: object, board: Board, kills: int, options: Options) -> Ledger:
    """Compares the buffer's content with what was acknowledged. Nobody may write meanwhile.

    A killed collector leaves at most one `extend` that it did not acknowledge: written (it counts in `write_count`)
    or given up (it used slots without counting). Both are allowed for, and not more.
    """
    size = options.extend_size
    content = buffer[:]
    writers, sequences = content["collector"].numpy(), content["sequence"].numpy()
    stats = buffer.stats()
    extends = board.acknowledged_extends()
    oldest = stats["write_count"] + kills * size - stats["capacity"]
    lost = owed_count = doubled = 0
    for collector in range(len(extends)):
        present = sequences[writers == collector]
        owed = owed_sequences(board, collector, oldest, size)
        owed_count += len(owed)
        doubled += len(present) - len(np.unique(present))
        lost += missing(present, owed, int(extends[collector]) * size)
    _, sampled, torn_count, over_issued, looks = board.learner[:5]
    return Ledger(
        sampled=int(sampled),
        kept=len(content),
        owed=owed_count,
        looks=int(looks),
        torn=int(torn_count) + torn(content),
        lost=lost,
        doubled=doubled,
        over_issued=int(over_issued),
        unacknowledged=stats["write_count"] - int(extends.sum()) * size,
        unacknowledged_limit=kills * size,
    )
