"""Records in files on a disk, counters and stamps in shared memory beside them."""

import os
import time
import uuid

import numpy as np

from ..errors import VersionError
from ..shm import space, table
from ..shm.folders import file_lock, own_scratch, read_marker, write_marker
from ..shm.freeing import free_if_dead, is_being_freed
from ..shm.lock import section
from ..shm.points import point
from ..shm.segment import Segment
from ..shm.table import W_CLAIMED, W_NEXT_INC
from ..state.recovery import State
from .tensor import TensorStorage

__all__ = ["LazyMemmapStorage"]

_PATIENCE = 10.0  # seconds that opening a folder waits for another process that is saving its counters


class LazyMemmapStorage(TensorStorage):
    """Keeps records in memory-mapped files of ``scratch_dir``; shared with ``share()``.

    Counters, stamps and locks stay on a tmpfs, so that they cost no disk writes. When the last process has ended, by
    exit or by SIGKILL, they are saved beside the records, and the folder can be opened again; that needs no copy.

    Args:
        max_size (int): number of slots.
        scratch_dir (str, optional): the folder; made if missing, never removed. Default: a temporary folder of our
            own, freed with the buffer.
        existsok (bool): open a folder that holds the records of an earlier buffer and go on with them.

        lock, event (optional): as :class:`LazyTensorStorage`.

    Raises:
        FileExistsError: the folder is in use, or was used and ``existsok`` is False.
        VersionError: the folder was left by a power loss (its counters are gone): load a checkpoint instead.
        SpaceError: no room on the disk, at the first write.

    Source: ``torchrl.data.LazyMemmapStorage``; there, ``existsok=True`` opens the files but not their counters.

    Example:
        >>> import tempfile, torch
        >>> from shmreplay import LazyMemmapStorage, ReplayBuffer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rb = ReplayBuffer(storage=LazyMemmapStorage(8, scratch_dir=folder), batch_size=2)
        ...     _ = rb.extend(torch.arange(3))
        ...     len(rb)
        3
    """

    def __init__(
        self, max_size: int, *, scratch_dir=None, device="cpu", existsok: bool = False, compilable: bool = False,
        shared_init: bool = False, lock=None, event=None,
    ):  # fmt: skip
        self._scratch, self._existsok = None if scratch_dir is None else os.path.abspath(scratch_dir), existsok
        super().__init__(max_size, device=device, compilable=compilable, lock=lock, event=event)

    def _new_segment(self) -> Segment:
        scratch = getattr(self, "_scratch", None)
        if scratch is None:
            folder = os.path.join(own_scratch(), uuid.uuid4().hex[:16])
            segment = self._made(folder, ours=True)  # first: whoever frees it removes the folder
            os.makedirs(folder, mode=0o700)
            point("shmreplay.scratch.made")
            write_marker(folder, segment.path)
            return segment
        os.makedirs(scratch, exist_ok=True)
        with file_lock(os.path.join(scratch, "shmreplay.lock")):  # of two who open it at once, one has it
            marker = read_marker(scratch)
            if marker is not None:
                return self._reopened(scratch, marker)
            segment = self._made(scratch, ours=False)
            point("shmreplay.scratch.marking")
            write_marker(scratch, segment.path)
            return segment

    def _made(self, folder: str, *, ours: bool) -> Segment:
        config = {"storage": type(self).__name__, "records_folder": folder, "records_are_ours": ours}
        segment = Segment.create(self.max_size, config, self._kinds)
        segment.exclusive = True
        self._folder = folder
        return segment

    def _attach_segment(self, segment: Segment) -> None:
        super()._attach_segment(segment)
        if not segment.config()["records_are_ours"]:
            self._scratch = self._folder

    def _reopened(self, folder: str, marker: dict) -> Segment:
        if not self._existsok:
            raise FileExistsError(
                f"{folder} holds the records of an earlier replay buffer. Pass existsok=True to go on with them, or "
                "choose an empty folder."
            )
        if marker["segment"] is not None:
            self._free(folder, marker["segment"])
            marker = read_marker(folder)
        if marker["segment"] is not None:
            raise VersionError(
                f"{folder} was left by a power loss or a reboot: its counters and stamps, which were in memory, are "
                "gone. Load a checkpoint into a new folder."
            )
        saved = np.memmap(os.path.join(folder, "control"), np.uint8, "r")
        version, capacity = (int(saved[:64].view(np.int64)[word]) for word in (table.H_VERSION, table.H_CAPACITY))
        if version != table.FORMAT_VERSION:
            raise VersionError(
                f"{folder} has format version {version}, this library reads {table.FORMAT_VERSION}: use the version of "
                "shmreplay that made it"
            )
        if capacity != self.max_size:
            raise ValueError(f"{folder} holds {capacity} slots, max_size={self.max_size} was asked. Ask for {capacity}.")
        segment = self._made(folder, ours=False)
        _restore(segment, saved)
        point("shmreplay.scratch.marking")
        write_marker(folder, segment.path)
        return segment

    @staticmethod
    def _free(folder: str, segment: str) -> None:
        """Have the counters of the dead saved beside the records, or raise FileExistsError."""
        patience = time.monotonic() + _PATIENCE
        while not free_if_dead(segment) and os.path.isdir(segment):
            if not is_being_freed(segment) or time.monotonic() > patience:
                raise FileExistsError(f"{folder} is in use by a living process: shmreplay.attach({folder!r}) joins it")
            time.sleep(0.001)

    def _local_state(self) -> dict:
        return super()._local_state() | {"_scratch": None, "_existsok": False}

    @property
    def scratch_dir(self) -> str:
        """The folder of the records."""
        return self._folder

    @property
    def path(self) -> str | None:
        """Where other processes attach: the folder if the user named it; None while unshared."""
        return (self._scratch or self.segment.path) if self.is_shared else None


def _restore(segment: Segment, saved: np.ndarray) -> None:
    """Take over the saved bytes of a control file whose processes are all dead, and resolve what they left."""
    words = segment.words
    head = saved[: table.FIXED_NBYTES].view(np.int64)
    layout = slice(8 * table.H_LAYOUT_STATE, 8 * (table.H_LAYOUT_DIGEST + 4))
    space.claim(
        os.path.join(segment.path, "control"),
        [(table.LEDGERS, table.FIXED_NBYTES - table.LEDGERS)],
        "the ledgers of a buffer",
        memory=True,
    )
    claimed = int(head[(table.WORDS >> 3) + W_CLAIMED])
    at = table.stamps_offset(segment.capacity)
    if claimed:
        stamps = (at, table.STAMP_NBYTES * claimed)
        space.claim(os.path.join(segment.path, "control"), [stamps], "the stamps of a buffer", memory=True)
        segment.control[at : at + table.STAMP_NBYTES * claimed] = saved[at : at + table.STAMP_NBYTES * claimed]
    segment.control[layout] = saved[layout]
    segment.control[table.OP : table.MEMBERS] = saved[table.OP : table.MEMBERS]
    segment.control[table.JOURNAL : table.FIXED_NBYTES] = saved[table.JOURNAL : table.FIXED_NBYTES]
    inc = int(head[(table.WORDS >> 3) + W_NEXT_INC]) + 1
    words[(table.WORDS >> 3) + W_NEXT_INC] = inc
    segment.members.register(None, segment.row, inc)
    segment.inc = inc
    _resolve_all(State(segment))
    for word in (table.W_CLOSED, table.W_N_LEDGERS):  # buffers take the ledgers over, in the order they are made
        words[(table.WORDS >> 3) + word] = 0


@section
def _resolve_all(state: State) -> None:
    segment, ring = state.segment, state.ring
    try:
        held = segment.lock.acquire()
        ring.words[W_NEXT_INC] = segment.inc  # a recovery just now may have put the saved one back
        owners = {ring.journal.owner(entry) for entry in ring.journal.entries(held)}
        for ledger in state.used_ledgers():
            owners |= ledger.owners(held)
        owners.add((ring.words[table.W_GATE_ROW], ring.words[table.W_GATE_INC]))
        for row, inc in owners:
            if inc and inc != segment.inc:
                mine = segment.members.row == row
                state.resolve_owner(held, row, inc)
                if mine:
                    segment.members.register(held, row, segment.inc)
        segment.control[table.WAITERS : table.WAITERS + table.QUEUE_NBYTES] = 0
        for ledger in state.used_ledgers():
            ledger.clear()
        ring.words[table.W_SLEEPERS] = 0
    finally:
        segment.lock.here.unlock()

