"""Sampling: budget, draw, whole records, settle."""

import warnings

import numpy as np
import torch

from ..checks import as_count
from ..errors import BudgetError, ClosedError, SampleTimeoutError
from ..samplers import EMPTY, RandomSampler
from ..shm.points import point
from ..shm.table import B_LIMITED, R_SAMPLE, W_CLOSED, W_LEN
from ..state.ledger import Claim
from ..storages.reading import PassedError
from ..writers import TensorDictRoundRobinWriter
from .draft import Draft, labelled
from .limited import limits_of

__all__ = ["Sampling"]

_NO_SIZE = (
    "batch_size not specified. You can specify the batch_size when constructing the replay buffer, or pass it to the "
    "sample method."
)


class Sampling:
    """The sampling half of a buffer: needs its parts, its ledger and its ring."""

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        wait: bool = False,
        timeout: float | None = None,
        cancel_event=None,
    ):
        """Draw a batch of whole records, within the budget.

        Args:
            batch_size (int, optional): records to draw; default: the buffer's.
            return_info (bool): return ``(data, info)``.
            wait (bool): block until data and budget permit it, in the order of asking among all processes.
            timeout (float, optional): seconds to wait. None: for ever.
            cancel_event (optional): ends the wait when ``is_set()``.

        Returns:
            The batch, its fields contiguous and private, batch dimension first. ``info`` holds ``index`` (int64 [n])
            and, if the writer tracks them, ``index_generation`` (int64 [n]).

        Raises:
            RuntimeError: not possible now and ``wait`` is False; cancelled; shut down; no batch size.
            TimeoutError: past ``timeout``.
            TypeError, ValueError: a bad batch size or timeout.

        Source: ``ReplayBuffer.sample`` and ``RateLimitedReplayBuffer.sample``; there, a killed sampler leaks its
        budget.
        """
        data, info = self._sampled(batch_size, wait, timeout, cancel_event)
        return (data, info) if return_info else data

    def _sampled(self, batch_size, wait, timeout, cancel_event) -> tuple:
        n = self._checked_size(batch_size)
        if self._segment.row < 0:
            self._segment.seat()
        ledger, ring = self._ledger, self._ring
        if self._closed or ring.words[W_CLOSED]:
            raise ClosedError("A shut down replay buffer cannot be sampled.")
        if timeout is None and not (ledger.words[B_LIMITED] or ledger.samplers.waiting or (wait and not ring.words[W_LEN])):
            try:
                data, info, _ = self._draw(n, self._draft(n))
                ledger.count(len(info["index"]))
                return data, info
            except PassedError:
                pass
        call, limits = limits_of(self, timeout, cancel_event), ring.limits
        before = limits.call
        try:
            limits.call = call
            return self._sample_admitted(n, wait)
        finally:
            limits.call = before

    def _sample_admitted(self, n: int, wait: bool) -> tuple:
        claim = Claim(R_SAMPLE, n, self._sampler.needed_size(n))
        limited = bool(self._ledger.words[B_LIMITED])
        draft = self._draft(n)
        while True:
            done = 0
            try:
                self._admit(claim, wait, limited)
                point("shmreplay.admitted")
                data, info, epoch = self._draw(n, draft)
                if epoch == claim.epoch:
                    done = len(info["index"])
                    return data, info
            except PassedError:
                pass
            except BudgetError:
                if not wait or claim.row < 0:
                    raise
            except RuntimeError:
                if not wait or claim.row < 0 or self._ring.words[W_LEN]:
                    raise  # else: emptied since it was admitted, and the sampler said so
            finally:
                try:
                    self._ledger.settle(claim, done)
                except BaseException:
                    self._ring.debts.append((self._ledger.settle, claim, 0))
                    self._ring.pay_debts()
                    raise

    def _admit(self, claim: Claim, wait: bool, limited: bool) -> None:
        if not limited and not wait and not self._ring.words[W_LEN]:
            raise BudgetError("Cannot sample from an empty storage.")
        try:
            self._ledger.admit(claim, wait)
        except SampleTimeoutError:
            if limited:
                raise
            raise SampleTimeoutError(
                f"Replay buffer did not become sampleable for a batch of {claim.n} items within "
                f"{self._ring.limits.call.timeout} seconds: it lacks {self._ledger.why_not(claim.n, claim.need)}."
            ) from None

    def _draft(self, n: int) -> Draft | None:
        """A batch prepared as far as it can be without records; None where a sampler or collate_fn has a say."""
        if type(self._sampler) is not RandomSampler or self._collate_fn is not None:
            return None
        if not self._storage.has_outlines:
            return None
        writer = self._writer
        wants_labels = self._label_samples or isinstance(writer, TensorDictRoundRobinWriter)
        return Draft(self._storage, n, writer.tracks_generations, wants_labels, self._labels)

    def _labels(self, data) -> bool:
        """Whether ``data`` is to carry its slots and generations."""
        writer = self._writer
        return self._label_samples or (isinstance(writer, TensorDictRoundRobinWriter) and writer.labels(data))

    def _draw(self, n: int, draft: Draft | None) -> tuple:
        """A batch as (data, info, epoch), whatever the budget."""
        storage = self._storage
        if draft is not None:
            if not self._ring.words[W_LEN]:
                raise BudgetError(EMPTY)
            return draft.fill(self._redraw)
        slots, info = self._drawn(n)
        point("shmreplay.drawn")
        if slots.size > n:
            raise ValueError(f"{self._sampler!r} drew {slots.size} records where {n} were asked and reserved")
        chunk, slots, generations, epoch = storage.read(slots, self._redraw)
        data = storage.build(chunk)
        info["index"] = torch.from_numpy(slots)
        writer = self._writer
        if writer.tracks_generations:
            info["index_generation"] = torch.from_numpy(generations)
        if self._collate_fn is not None:
            data = self._collate_fn(data)
        if self._labels(data):
            data = labelled(data, info)
        return data, info, epoch

    def _drawn(self, n: int) -> tuple:
        """What the sampler draws, as (slots, info); a user's sampler is checked."""
        index, info = self._sampler.sample(self._storage, n)
        if type(self._sampler) is RandomSampler:
            return index.numpy(), info
        slots = torch.as_tensor(index, dtype=torch.int64).reshape(-1).numpy()
        if slots.size and not 0 <= slots.min() <= slots.max() < self._storage.max_size:
            raise IndexError(f"{self._sampler!r} drew slots out of bounds, 0 to {self._storage.max_size - 1}")
        return slots, info

    def _redraw(self, n: int):
        if type(self._sampler) is RandomSampler:
            return self._storage.draw_whole(n)
        slots = self._drawn(n)[0]
        return slots if slots.size == n else np.resize(slots, n)  # a sampler that draws fewer than it is asked

    def _checked_size(self, batch_size) -> int:
        mine = self._batch_size
        if batch_size is None:
            if mine is None:
                raise RuntimeError(_NO_SIZE)
            return mine
        n = as_count(batch_size, "batch_size")
        if mine is not None and n != mine and not self._warned:
            self._warned = True
            warnings.warn(
                f"Got conflicting batch_sizes in constructor ({mine}) and `sample` ({n}). The batch-size provided to "
                "the sample method will prevail.",
                stacklevel=4,
            )
        return n

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether ``sample(batch_size)`` would be served at once: data, budget, and nobody waiting before it."""
        n = self._batch_size if batch_size is None else as_count(batch_size, "batch_size")
        if n is None:
            raise RuntimeError(
                "batch_size not specified. Configure it on the replay buffer or pass it to can_sample()."
            )
        if self._closed or self._ring.words[W_CLOSED]:
            return False
        if self._ledger.samplers.waiting:
            self._segment.seat()
            while self._ledger.bury_holders():  # the dead do not wait
                pass
        return not self._ledger.samplers.waiting and self._ready(n)

    def _ready(self, n: int) -> bool:
        return self._sampler.can_sample(self._storage, n) and self._ledger.is_ready(n, self._sampler.needed_size(n))

    def wait_until_sampleable(self, min_items: int | None = None, timeout: float | None = None, cancel_event=None) -> bool:
        """Wait, without a place in the queue, until a sample of ``min_items`` would be possible.

        Args:
            min_items (int, optional): default: the buffer's batch size.
            timeout (float, optional): seconds to wait. None: for ever.
            cancel_event (optional): ends the wait when ``is_set()``.

        Returns:
            True when possible, False on timeout or cancellation. On a limited buffer, budget and minimum size count.

        Raises:
            RuntimeError: no batch size, or shut down.
        """
        n = self._batch_size if min_items is None else as_count(min_items, "min_items")
        if n is None:
            raise RuntimeError(
                "min_items not specified. Configure batch_size on the replay buffer or pass min_items to "
                "wait_until_sampleable()."
            )
        call, limits = limits_of(self, timeout, cancel_event), self._ring.limits
        before = limits.call
        try:
            limits.call = call
            return self._ledger.wait_ready(n, self._sampler.needed_size(n))
        finally:
            limits.call = before
