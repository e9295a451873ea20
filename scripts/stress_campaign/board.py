"""Words that the processes of a run share beside the buffer: each is written by one process only, so no lock."""

import mmap
import os

import numpy as np


class Board:
    """Named int64 arrays in one sparse file; pickling carries the path.

    Args:
        path: the file; made when it is not there.
        shapes: name to shape.
    """

    def __init__(self, path: str, **shapes: tuple[int, ...]) -> None:
        self._path, self._shapes = path, shapes
        sizes = [int(np.prod(shape)) for shape in shapes.values()]
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, 8 * sum(sizes))
            words = np.frombuffer(mmap.mmap(fd, 8 * sum(sizes)), np.int64)
        finally:
            os.close(fd)
        for (name, shape), end in zip(shapes.items(), np.cumsum(sizes)):
            setattr(self, name, words[end - int(np.prod(shape)) : end].reshape(shape))

    def __reduce__(self) -> tuple:
        return _open, (self._path, self._shapes)


def _open(path: str, shapes: dict) -> Board:
    return Board(path, **shapes)


class Flag:
    """One word of a board, in the form that `cancel_event` takes."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name

    def is_set(self) -> bool:
        return bool(getattr(self._board, self._name)[0])

    def set(self) -> None:
        getattr(self._board, self._name)[0] = 1
