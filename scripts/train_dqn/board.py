"""Small shared counters beside the buffer: who acknowledged what, finished episodes, progress, the stop word.

Everything here is a torch tensor in shared memory with one writer for each word, so that a killed process can leave
nothing locked. The tensors change only through the methods of this module.
"""

import time

import numpy as np
import torch
import torch.multiprocessing  # noqa: F401  (lets multiprocessing pickle shared tensors)

from train_dqn.options import Options

_EPISODES = 1_024  # a collector's finished episodes that are kept until the supervisor reads them


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).share_memory_()


class Board:
    """The counters of one run; a handle when pickled to another process."""

    def __init__(self, options: Options) -> None:
        n = options.collector_limit
        # Older entries belong to records that this collector alone has overwritten twice.
        self._log_length = max(4, 2 * options.capacity // options.extend_size)
        self._stop = _shared((1,), torch.int64)
        self._steps = _shared((n,), torch.int64)
        self._extends = _shared((n,), torch.int64)
        self._inserts_before = _shared((n, self._log_length), torch.int64)
        self._episode_counts = _shared((n,), torch.int64)
        self._episodes = _shared((n, _EPISODES, 2), torch.float64)
        self._learner = _shared((6,), torch.float64)

    # Every process

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return bool(self._stop.numpy()[0])

    def stop(self) -> None:
        """Asks every process to finish."""
        self._stop.numpy()[0] = 1

    @property
    def steps(self) -> int:
        """Environment steps of all collectors together."""
        return int(self._steps.numpy().sum())

    # Collectors

    def count_steps(self, collector: int, n: int) -> None:
        """Adds environment steps of one collector."""
        self._steps.numpy()[collector] += n

    def begin_extend(self, collector: int, write_count: int) -> None:
        """Notes the buffer's `write_count` as it was before this collector's next `extend`."""
        done = self._extends.numpy()[collector]
        self._inserts_before.numpy()[collector, done % self._log_length] = write_count

    def acknowledge(self, collector: int) -> None:
        """Notes that this collector's `extend` has returned."""
        self._extends.numpy()[collector] += 1

    def finish_episode(self, collector: int, episode_return: float) -> None:
        """Notes a finished episode and when it finished."""
        done = self._episode_counts.numpy()
        self._episodes.numpy()[collector, done[collector] % _EPISODES] = (time.monotonic(), episode_return)
        done[collector] += 1

    # Learner

    def note_learner(self, values: tuple[float, ...]) -> None:
        """Takes the learner's updates, samples, torn records, over-issued samples, looks and last loss."""
        self._learner.numpy()[:] = values

    # Supervisor

    @property
    def learner(self) -> tuple[float, ...]:
        """What `note_learner` last took."""
        return tuple(self._learner.tolist())

    def acknowledged_extends(self) -> np.ndarray:
        """Returns for each collector how many `extend` calls have returned."""
        return self._extends.numpy().copy()

    def logged_extends(self, collector: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns numbers and `write_count` before them, of this collector's acknowledged extends still logged."""
        done = int(self._extends.numpy()[collector])
        numbers = np.arange(max(0, done - self._log_length + 1), done)
        return numbers, self._inserts_before.numpy()[collector, numbers % self._log_length]

    def episodes_since(self, seen: np.ndarray) -> list[tuple[float, float]]:
        """Returns (time, return) of episodes that finished since `seen`, in that order, and moves `seen` on.

        Args:
            seen: int64, one count a collector; zeros at first.
        """
        counts = self._episode_counts.numpy().copy()
        fresh = []
        for collector in np.flatnonzero(counts > seen):
            numbers = np.arange(max(seen[collector], counts[collector] - _EPISODES), counts[collector])
            fresh += map(tuple, self._episodes.numpy()[collector, numbers % _EPISODES].tolist())
        seen[:] = counts
        return sorted(fresh)
