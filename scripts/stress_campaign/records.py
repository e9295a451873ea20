"""What is written: records whose every word follows from their writer and sequence, so that a mixed one shows."""

import numpy as np
import torch
from tensordict import TensorDict

_FACTOR = 0x1E3779B97F4A7C15  # odd, so that different records have different patterns
TINY = (30, ())  # 256 bytes, one packed row
PAGE = (60, (448,))  # 4 KiB: a packed row and one large column
FRAMES = (60, (3528, 3528))  # 56 KiB: two stacks of 84 x 84 x 4 bytes beside a packed row


def pattern(writers: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """Returns the int64 word that fills the record of each writer and sequence."""
    return ((writers << 32) + sequences + 1) * np.int64(_FACTOR)


class Batches:
    """Makes one writer's batches of `n` records, in the same memory every time.

    Args:
        shape: words of the packed field, and words of each large field.
    """

    def __init__(self, writer: int, n: int, shape: tuple = TINY) -> None:
        self.writer, self.n = writer, n
        small, columns = shape
        self._fields = {"small": np.empty((n, small), np.int64)}
        for number, words in enumerate(columns):
            self._fields[f"column{number}"] = np.empty((n, words), np.int64)
        self._sequence = np.empty(n, np.int64)
        self._writer = np.full(n, writer)
        fields = self._fields | {"sequence": self._sequence, "writer": self._writer}
        self._batch = TensorDict({name: torch.from_numpy(field) for name, field in fields.items()}, [n])

    def make(self, first: int) -> TensorDict:
        """Returns the records `first` to `first + n`; valid until the next call."""
        self._sequence[:] = np.arange(first, first + self.n)
        word = pattern(self._writer, self._sequence)[:, None]
        for field in self._fields.values():
            field[:] = word
        return self._batch


def torn(batch: TensorDict) -> int:
    """Returns how many records of a batch are not, in every word, one record that a writer made.

    Where the batch has generations, two rows of one slot and generation must be the same record.
    """
    word = pattern(batch["writer"].numpy(), batch["sequence"].numpy())
    bad = np.zeros(len(word), bool)
    for name in batch.keys():
        if name == "small" or name.startswith("column"):
            same = batch[name].numpy() == word[:, None]
            if not same.all():
                bad |= ~same.all(1)
    return int(np.count_nonzero(bad)) + _ambiguous(batch, word)


def _ambiguous(batch: TensorDict, word: np.ndarray) -> int:
    if "index_generation" not in batch.keys():
        return 0
    handle = (batch["index"].numpy() << 40) + batch["index_generation"].numpy()
    order = np.argsort(handle, kind="stable")
    handle, word = handle[order], word[order]
    return int(np.count_nonzero((handle[1:] == handle[:-1]) & (word[1:] != word[:-1])))
