"""How a buffer gets to other processes: sharing, pickling, attaching by path."""

import json
import os

from ..errors import ShmReplayError
from ..shm import space
from ..shm.segment import Segment

__all__ = ["Handle", "attach"]


class Handle:
    """The part of a buffer that other processes see: where it is, never what it holds."""

    def share(self, shared: bool = True):
        """Move records, stamps, counters and budget into shared memory; or, with False, back.

        A buffer that was pickled before stays what it was there: share first, then start processes.

        Returns:
            This buffer.

        Raises:
            RuntimeError: the storage cannot be shared (the message names those that can), calls are under way in
                other threads, or with False: other processes are attached.
            SpaceError: no room.

        Source: ``ReplayBuffer.share``, which leaves the storage where it is.
        """
        if shared:
            before = self.shared
            self._storage.share()
            try:
                for buffer in list(self._storage._buffers):
                    buffer._publish()
            except BaseException:
                if not before:
                    self._storage.unshare()
                raise
        else:
            self._storage.unshare()
        return self

    @property
    def shared(self) -> bool:
        """Whether other processes can hold this buffer."""
        return self._storage.is_shared

    @property
    def path(self) -> str | None:
        """What ``shmreplay.attach`` takes; None while unshared."""
        return self._storage.path

    def _publish(self) -> None:
        """Say beside the control file what kind of buffer this is, for processes that attach by path."""
        folder = self._segment.path
        writer = self._writer
        config = {
            "buffer": _own_name(type(self)),
            "batch_size": self._batch_size,
            "sampler": _own_name(type(self._sampler)),
            "writer": _own_name(type(writer)),
            "track_generations": writer.tracks_generations,
        }
        partial = os.path.join(folder, f"buffer-{self._ledger_index}.partial")
        with space.explained(folder, 4096, "the description of a buffer"), open(partial, "w") as file:
            json.dump(config, file)
        os.replace(partial, os.path.join(folder, f"buffer-{self._ledger_index}.json"))

    def __getstate__(self) -> dict:
        """Shared: a handle and the local parts. Unshared: the content too; the copy is independent."""
        return {
            "storage": self._storage,
            "sampler": self._sampler,
            "writer": self._writer,
            "collate_fn": self._collate_fn,
            "batch_size": self._batch_size,
            "ledger": self._ledger_index,
        }

    def __setstate__(self, state: dict) -> None:
        self._storage, self._sampler, self._writer = state["storage"], state["sampler"], state["writer"]
        self._collate_fn, self._batch_size = state["collate_fn"], state["batch_size"]
        self._ledger_index = state["ledger"]
        self._warned = self._closed = False
        self._rng = None
        self._storage.attach(self)
        self._writer.register_storage(self._storage)
        self._bind()


def _own_name(kind: type) -> str:
    """The name of the nearest class of this library."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return base.__name__
    raise ShmReplayError(f"{kind} is no class of this library")


def attach(path: str, *, buffer: int = 0, sampler=None, writer=None, collate_fn=None):
    """The shared buffer at ``path``, from a process that was started on its own.

    Args:
        path (str): ``rb.path``, or the ``scratch_dir`` that the user named.
        buffer (int): which one, where several buffers share the storage; 0 is the first.
        sampler, writer, collate_fn (optional): local parts, in place of the ones that the buffer was made with.

    Returns:
        The buffer, of the class that it was made as.

    Raises:
        FileNotFoundError: there is none, or it was freed.
        VersionError: of another format version, boot or pid namespace.

    Example:
        >>> import torch, shmreplay
        >>> rb = shmreplay.ReplayBuffer(storage=shmreplay.LazyTensorStorage(4), shared=True)
        >>> _ = rb.extend(torch.arange(3))
        >>> len(shmreplay.attach(rb.path))
        3
    """
    import shmreplay

    segment = Segment.attach(path)
    try:
        with open(os.path.join(segment.path, f"buffer-{buffer}.json")) as file:
            config = json.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"no buffer {buffer} at {path}") from None
    kind = getattr(shmreplay, segment.config()["storage"])
    storage = kind.__new__(kind)
    storage.__setstate__(
        {"path": segment.path, "max_size": segment.capacity, "class_state": {"_scratch": None, "_existsok": False}}
    )
    writer = writer or getattr(shmreplay, config["writer"])(track_generations=config["track_generations"])
    found = getattr(shmreplay, config["buffer"]).__new__(getattr(shmreplay, config["buffer"]))
    found.__setstate__(
        {
            "storage": storage,
            "sampler": sampler or getattr(shmreplay, config["sampler"])(),
            "writer": writer,
            "collate_fn": collate_fn,
            "batch_size": config["batch_size"],
            "ledger": buffer,
        }
    )
    return found
