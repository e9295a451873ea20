"""Storages whose records are bytes: in shared memory, or in files on a disk.

``records`` holds, one after another and aligned to pages: the packed rows (all small fields), then one column for each
large field. How the layout gets fixed is in ``fixing.py``.
"""

import os

import numpy as np
import torch

from ..errors import SpaceError
from ..records import RecordLayout
from ..shm import space, table
from ..shm.points import point
from ..shm.segment import Segment, chosen_kinds, map_file, map_private
from ..shm.table import W_OPEN, W_SLEEPERS
from .base import NEVER_STORED, Storage
from .fixing import Fixing

__all__ = ["LazyTensorStorage", "TensorStorage"]

_STEP_NBYTES = 16 << 20
_BOUND = {"state", "segment", "ring", "_layout", "_rows", "_offsets", "_columns", "_column_tensors"}


def _pages(nbytes: int) -> int:
    return (nbytes + 4095) & ~4095


class TensorStorage(Fixing, Storage):
    """Base of the storages that keep bytes; see the module's docstring for the protocol.

    Mutable: ``_layout`` and the views on the records (a cache of what the header and the files say).
    """

    can_share = True

    def __init__(
        self, max_size: int, *, device="cpu", compilable: bool = False, shared_init: bool = False, lock=None, event=None
    ):
        self._kinds = chosen_kinds(lock, event)
        self._layout = None
        self._folder = None  # where the records are, when not beside the control file
        device = torch.device("cpu" if device in (None, "auto") else device)
        if device.type != "cpu":
            raise NotImplementedError(
                f"{type(self).__name__}(device={str(device)!r}): storages are on the CPU; move samples with .to(device)"
            )
        super().__init__(max_size, compilable=compilable)

    # -- layout ------------------------------------------------------------------------------------------------

    def stage(self, data, *, batched: bool):
        self._check_seat()
        if batched and isinstance(data, list):
            data = RecordLayout.stack(data)
        layout = self._layout or self._known_layout()
        if layout is None:
            wanted = RecordLayout.of(data, batched=batched, ignore=NEVER_STORED)
            wanted.stage(data, batched=batched)  # what cannot be written must not fix the layout
            layout = self._fix_layout(wanted)
        return layout.stage(data, batched=batched)

    def prepare(self, example) -> bool:
        if self._known_layout() is None and example is not None:
            self._fix_layout(RecordLayout.of(example, batched=True, ignore=NEVER_STORED))
        return self._layout is not None

    # -- files -------------------------------------------------------------------------------------------------

    def _records_folder(self) -> str | None:
        return self._folder or self.segment.path

    def _on_memory(self) -> bool:
        """Whether records take memory (and not disk)."""
        return self._folder is None

    def _nbytes(self, layout: RecordLayout) -> int:
        columns = sum(_pages(self.max_size * column.nbytes) for column in layout.columns)
        return max(4096, _pages(self.max_size * layout.row_nbytes) + columns)  # records of no bytes: still a file

    def _create_records(self, layout: RecordLayout) -> None:
        """Make the records file, of full length and no content; raises if it can never be filled."""
        folder, nbytes = self._records_folder(), self._nbytes(layout)
        if folder is None:
            return
        stamps = self.max_size * table.STAMP_NBYTES
        if self._on_memory():
            space.check_room(folder, nbytes + stamps, f"{self.max_size:,} records", memory=False)
        else:
            space.check_room(folder, nbytes, f"{self.max_size:,} records", memory=False)
        for name, content in (("layout.json", layout.to_json()), ("records", "")):
            partial = os.path.join(folder, f"{name}.partial")  # one creator at a time; a dead one's is written over
            with space.explained(folder, len(content), "the layout of the records"):
                with open(partial, "w") as file:
                    file.write(content)
            if name == "records":
                os.truncate(partial, nbytes)
            point("shmreplay.layout.written")
            os.replace(partial, os.path.join(folder, name))
            point("shmreplay.layout.renamed")

    def _map(self, layout: RecordLayout) -> None:
        nbytes, folder = self._nbytes(layout), self._records_folder()
        memory = map_private(nbytes) if folder is None else map_file(os.path.join(folder, "records"), nbytes)
        self._set_views(layout, memory)

    def _set_views(self, layout: RecordLayout, memory: np.ndarray) -> None:
        n, at = self.max_size, 0
        offsets, columns = [], []
        rows = memory[: n * layout.row_nbytes].reshape(n, layout.row_nbytes) if layout.row_nbytes else None
        at = _pages(n * layout.row_nbytes)
        for column in layout.columns:
            columns.append(memory[at : at + n * column.nbytes].reshape(n, column.nbytes))
            offsets.append(at)
            at += _pages(n * column.nbytes)
        self._rows, self._offsets, self._columns = rows, offsets, columns
        self._column_tensors = [torch.from_numpy(column) for column in columns]
        self._layout = layout  # last: whoever sees it finds the views

    def claim_rows(self, start: int, rows: int) -> None:
        layout = self._layout or self._known_layout()
        per_row = table.STAMP_NBYTES + layout.row_nbytes + sum(column.nbytes for column in layout.columns)
        step = max(64, min(_STEP_NBYTES // per_row, self.max_size // 8))
        stop = min(self.max_size, max(rows, start + step))
        if self.segment.path is not None:
            try:
                self._claim_files(layout, start, stop)
            except SpaceError:
                if stop == rows:
                    raise
                stop = rows
                self._claim_files(layout, start, stop)
        point("shmreplay.claimed")
        self.ring.claimed(stop)

    def _claim_files(self, layout: RecordLayout, start: int, stop: int) -> None:
        n, folder, what = stop - start, self._records_folder(), "more records"
        stamps = (table.stamps_offset(self.max_size) + start * table.STAMP_NBYTES, n * table.STAMP_NBYTES)
        space.claim(os.path.join(self.segment.path, "control"), [stamps], what, memory=True)
        ranges = [(start * layout.row_nbytes, n * layout.row_nbytes)]
        for at, column in zip(self._offsets, layout.columns):
            ranges.append((at + start * column.nbytes, n * column.nbytes))
        space.claim(os.path.join(folder, "records"), ranges, what, memory=self._on_memory())

    def _set_aside(self) -> None:
        if self._layout is not None:
            self._layout.set_aside()

    # -- records -----------------------------------------------------------------------------------------------

    def _put(self, where, staged, offset: int, n: int) -> None:
        if staged.rows is not None:
            self._rows[where] = staged.rows[offset : offset + n]
        point("shmreplay.copying")
        for column, source in zip(self._columns, staged.columns):
            column[where] = source[offset : offset + n]

    @property
    def has_outlines(self) -> bool:
        return self._layout is not None or self._known_layout() is not None

    def outline(self, n: int, more: dict):
        return self._layout.outline(n, more)


    def finish(self, outline):
        """The data of an outline whose chunk was gathered."""
        return self._layout.finish(outline)

    def _gather(self, slots: np.ndarray, chunk=None):
        layout = self._layout or self._known_layout()
        if layout is None:
            raise RuntimeError("Cannot sample from an empty storage.")
        if chunk is None:
            chunk = layout.allocate(slots.size)
        if chunk.rows is not None:
            self._rows.take(slots, 0, chunk.rows, "clip")
        if self._columns:
            index = torch.from_numpy(slots)
            for view, tensor, out in zip(self._columns, self._column_tensors, chunk.columns):
                if self.segment.in_child:  # torch may hang in a forked child whose parent used OpenMP
                    view.take(slots, 0, out.numpy(), "clip")
                else:
                    torch.index_select(tensor, 0, index, out=out)
        return chunk

    def _regather(self, chunk, at: np.ndarray, slots: np.ndarray) -> None:
        if chunk.rows is not None:
            chunk.rows[at] = self._rows[slots]
        for view, out in zip(self._columns, chunk.columns):
            out.numpy()[at] = view[slots]

    def _keep(self, chunk, kept: np.ndarray):
        other = self._layout.allocate(kept.size)
        if chunk.rows is not None:
            other.rows[...] = chunk.rows[kept]
        for source, target in zip(chunk.columns, other.columns):
            target.numpy()[...] = source.numpy()[kept]
        return other

    def build(self, chunk):
        return self._layout.build(chunk)

    def build_one(self, chunk):
        return self._layout.build_one(chunk)

    def get(self, index, build=None):
        if self._layout is None and self._known_layout() is None:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        return super().get(index, build)

    @property
    def initialized(self) -> bool:
        """Whether the first write has fixed the layout."""
        return self._known_layout() is not None

    # -- sharing -----------------------------------------------------------------------------------------------

    def share(self) -> None:
        """Move records, stamps and counters into shared memory.

        Raises:
            RuntimeError: calls are under way in other threads.
            SpaceError: no room.
        """
        if self.is_shared:
            return
        if self.segment.path is not None:  # files already
            self._check_seat()
            self.segment.exclusive = False
            return
        self._move(Segment.create(self.max_size, self._config(), self._kinds))

    def unshare(self) -> None:
        """Move into private memory again.

        Raises:
            RuntimeError: other processes are attached, or calls are under way.
        """
        if not self.is_shared:
            return
        self._check_seat()
        if self.segment.members.live_count() > 1:
            raise RuntimeError(
                f"share(False): {self.segment.members.live_count() - 1} other processes are attached to {self.path}. "
                "End them first."
            )
        if self._folder is not None:
            self.segment.exclusive = True
            return
        self._known_layout()
        self._move(Segment.private(self.max_size))

    def _move(self, target: Segment) -> None:
        words = self.ring.words
        if words[W_OPEN] or words[W_SLEEPERS]:
            raise RuntimeError("share(): other threads are in the middle of calls. Call it before they start.")
        content = self.content()
        point("shmreplay.share.copied")
        before = {name: value for name, value in self.__dict__.items() if name in _BOUND}  # holds the old state too
        self._layout = None
        try:
            self._bind(target)
            point("shmreplay.share.bound")
            self._take_content(content)
            point("shmreplay.share.filled")
        except BaseException:
            self.__dict__.update(before)
            if target.path is not None:
                target.leave()
            raise
        for buffer in list(self._buffers):
            buffer._bind()

    def _take_content(self, content: dict) -> None:
        path, nbytes = self.segment.path, content["ledgers"].size
        if path is not None and nbytes > table.LEDGER_NBYTES:
            ledgers = [(table.LEDGERS, nbytes)]
            space.claim(os.path.join(path, "control"), ledgers, "the ledgers of a buffer", memory=True)
        super()._take_content(content)

    def _config(self) -> dict:
        return {"storage": type(self).__name__, "records_folder": self._folder}

    # -- content -----------------------------------------------------------------------------------------------

    def _local_state(self) -> dict:
        return {"_kinds": self._kinds}

    def __setstate__(self, state: dict) -> None:
        self._layout = self._folder = None
        super().__setstate__(state)

    def _attach_segment(self, segment: Segment) -> None:
        self._folder, self._kinds = segment.config().get("records_folder"), segment.kinds
        super()._attach_segment(segment)
        segment.seat()  # from now on it is not freed when those who have it already end

    def _records_content(self, claimed: int):
        layout = self._known_layout()
        if layout is None:
            return None
        rows = self._rows[:claimed].copy() if self._rows is not None else None
        return {"layout": layout.to_json(), "rows": rows, "columns": [column[:claimed].copy() for column in self._columns]}

    def _take_records(self, records, claimed: int) -> None:
        if records is None:
            return
        self._fix_layout(RecordLayout.from_json(records["layout"]))
        if claimed:
            self.claim_rows(0, claimed)
        if self._rows is not None:
            self._rows[:claimed] = records["rows"]
        for column, source in zip(self._columns, records["columns"]):
            column[:claimed] = source

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_size={self.max_size}, len={len(self)}, shared={self.is_shared})"


class LazyTensorStorage(TensorStorage):
    """Keeps records in memory; in shared memory after ``share()``.

    Nothing is allocated before the first write; memory is claimed as the ring grows.

    Args:
        max_size (int): number of slots.
        device: "cpu".
        shared_init (bool): accepted; the layout is always fixed by whichever process writes first.
        lock ("pthread" or "flock", optional): kind of lock once shared; default: SHMREPLAY_LOCK, else "pthread".
            "flock" works across pid namespaces and is slower.
        event ("futex" or "poll", optional): how waiters sleep; default: SHMREPLAY_EVENT, else "futex".

    Raises:
        SpaceError: at the first write if the records can never fit, else at the write that does not.

    Source: ``torchrl.data.LazyTensorStorage``.

    Example:
        >>> import torch
        >>> from shmreplay import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
        >>> rb.extend(torch.arange(6))
        tensor([0, 1, 2, 3, 0, 1])
        >>> rb[:]
        tensor([4, 5, 2, 3])
    """
