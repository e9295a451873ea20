"""What every buffer does on every storage: sampling, waiting, counting, emptying, copying, closing."""

import copy
import math
import pickle
import threading
import time
import warnings
from fractions import Fraction

import pytest
import torch
from kinds import Set, batch, cancel_after_first_look, check_agreement, each_kind, generations, observed, state_bytes
from servants import PATIENCE, in_thread

import shmreplay as sr

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


class BufferContract:
    # -- sampling --------------------------------------------------------------------------------------------------

    def test_a_sample_is_whole_records_with_slot_and_generation(self):
        buffer = self.buffer(6, batch_size=50)
        buffer.extend(batch(0, 8))
        sample, info = buffer.sample(return_info=True)
        assert sample.batch_size == torch.Size([50]) and set(info) == {"index", "index_generation"}
        check_agreement(sample)
        for key in info:
            assert (sample[key] == info[key]).all() and info[key].dtype == torch.int64
        assert (sample["x"] == torch.tensor([6, 7, 2, 3, 4, 5])[sample["index"]]).all()
        assert (sample["index_generation"] == torch.tensor([1, 1, 0, 0, 0, 0])[sample["index"]]).all()
        assert set(buffer.sample(include_info=False).keys()) == {"x", "n", "wide"}
        assert all(leaf.is_contiguous() for leaf in sample.values(True, True))

    def test_a_plain_buffer_keeps_the_labels_in_the_info(self):
        buffer = self.plain(6, batch_size=3)
        buffer.extend(batch(0, 4))
        data, info = buffer.sample(return_info=True)
        assert set(data.keys()) == {"x", "n", "wide"} and (data["x"] == info["index"]).all()
        assert info["index_generation"].tolist() == [0] * 3

    def test_nothing_to_sample(self):
        for buffer in (self.buffer(6, batch_size=2), self.plain(6, batch_size=2)):
            for _ in range(2):
                assert not buffer.can_sample()
                with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
                    buffer.sample()
                buffer.extend(batch(0, 3))
                assert buffer.can_sample() and buffer.can_sample(10**6)
                buffer.empty()

    def test_batch_sizes(self):
        buffer = self.buffer(6, batch_size=2)
        buffer.extend(batch(0, 3))
        assert buffer.batch_size == 2 and len(buffer.sample()) == 2
        with pytest.warns(UserWarning, match="conflicting batch_sizes"):
            assert len(buffer.sample(5)) == 5
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(buffer.sample(4)) == 4, "warned twice"
        unsized = self.buffer(6)
        unsized.extend(batch(0, 3))
        assert len(unsized.sample(3)) == 3 and unsized.batch_size is None
        with pytest.raises(RuntimeError, match="batch_size not specified"):
            unsized.sample()
        with pytest.raises(RuntimeError, match="batch_size not specified.*can_sample"):
            unsized.can_sample()
        with pytest.raises(RuntimeError, match="min_items not specified"):
            unsized.wait_until_sampleable()
        with pytest.raises(RuntimeError, match="Cannot iterate over the replay buffer"):
            next(iter(unsized))

    @pytest.mark.parametrize("size", [True, 1.5, "3", [2], 0, -1], ids=str)
    def test_what_is_no_batch_size(self, size):
        error = ValueError if isinstance(size, int) and not isinstance(size, bool) else TypeError
        for make in (self.buffer, self.limited):
            buffer = make(6)
            buffer.extend(batch(0, 3))
            before = state_bytes(buffer)
            for refused in (buffer.sample, buffer.can_sample):
                with pytest.raises(error, match="batch_size must be a positive integer"):
                    refused(size)
            with pytest.raises(error, match="min_items must be a positive integer"):
                buffer.wait_until_sampleable(size, timeout=0)
            assert state_bytes(buffer) == before
            with pytest.raises(error, match="batch_size"):
                make(6, batch_size=size)

    @pytest.mark.parametrize("timeout", [True, "1", -1, -0.1, math.nan], ids=str)
    def test_what_is_no_timeout(self, timeout):
        error = TypeError if timeout is True or timeout == "1" else ValueError
        buffer = self.limited(6, batch_size=2)
        buffer.extend(batch(0, 3))
        before = state_bytes(buffer)
        for refused in (
            lambda: buffer.sample(wait=True, timeout=timeout),
            lambda: buffer.wait_until_sampleable(timeout=timeout),
            lambda: buffer.extend(batch(3, 4), timeout=timeout),
            lambda: buffer.shutdown(timeout),
        ):
            with pytest.raises(error, match="timeout must be"):
                refused()
        assert state_bytes(buffer) == before and buffer.is_alive

    def test_iteration(self):
        buffer = self.buffer(6, batch_size=2)
        buffer.extend(batch(0, 3))
        for count, sample in enumerate(buffer, 1):
            check_agreement(sample)
            if count == 5:
                break
        assert buffer.stats()["sample_calls"] == 5

    def test_collate_fn(self):
        buffer = self.plain(6, batch_size=2, collate_fn=lambda data: data["x"].sum().item())
        buffer.extend(batch(3, 4))
        assert buffer.sample() == 6

    def test_a_generator_reproduces(self):
        buffer = self.buffer(100, batch_size=20)
        buffer.extend(batch(0, 100))
        generator = torch.Generator().manual_seed(3)
        buffer.set_rng(generator)
        first = buffer.sample()["x"]
        assert (buffer.sample()["x"] != first).any()
        generator.manual_seed(3)
        assert (buffer.sample()["x"] == first).all()

    # -- counting --------------------------------------------------------------------------------------------------

    def test_stats(self):
        buffer = self.buffer(6, batch_size=2)
        buffer.extend(batch(0, 4))
        buffer.sample()
        buffer.sample(3)
        expected = {
            "size": 4, "storage_size": 4, "sampleable_size": 4, "write_count": 4, "sample_calls": 2,
            "samples_returned": 5, "prefetch_queue_size": 0, "initialized": True, "capacity": 6, "utilization": 4 / 6,
        }  # fmt: skip
        stats = buffer.stats()
        assert {key: stats[key] for key in expected} == expected
        assert "sample_budget" not in stats and stats["live_members"] == 1 and stats["dead_members"] == 0

    @pytest.mark.parametrize("zero", [True, False])
    def test_empty(self, zero):
        buffer = self.limited(6, 2.0, batch_size=2)
        buffer.extend(batch(0, 8))
        buffer.sample()
        before = buffer.stats()
        buffer.empty(zero)
        assert len(buffer) == 0 and generations(buffer, 6) == [2, 2, 1, 1, 1, 1]
        assert buffer.write_count == (0 if zero else 8)
        assert buffer.stats()["samples_returned"] == (0 if zero else before["samples_returned"])
        assert buffer.stats()["sample_budget"] == (0 if zero else before["sample_budget"])
        assert not buffer.can_sample(1)
        with pytest.raises(IndexError):
            buffer[0]
        assert buffer.extend(batch(20, 22)).tolist() == [0, 1]
        assert generations(buffer, 6) == [3, 3, 1, 1, 1, 1] and buffer[:]["x"].tolist() == [20, 21]
        assert buffer.stats()["storage_size"] == 2
        buffer.storage.state.check_valid()

    def test_emptied_twice_and_before_any_write(self):
        buffer = self.buffer(4, batch_size=2)
        buffer.empty()
        assert generations(buffer, 4) == [-1] * 4 and len(buffer) == 0
        buffer.extend(batch(0, 2))
        assert generations(buffer, 4) == [0, 0, -1, -1], "a handle of another life"
        buffer.empty()
        buffer.empty(False)
        assert generations(buffer, 4) == [2, 2, -1, -1]
        buffer.extend(batch(0, 3))
        assert generations(buffer, 4) == [3, 3, 0, -1]

    # -- ratio -----------------------------------------------------------------------------------------------------

    def test_the_budget_is_exact(self):
        buffer = self.limited(200, 0.29, batch_size=1)
        for inserted in range(1, 101):
            buffer.add(batch(0, 1)[0])
            assert buffer.stats()["sample_budget"] == inserted * 29 // 100
        assert len(buffer.sample(29)) == 29 and not buffer.can_sample(1)
        stats = buffer.stats()
        assert stats["samples_returned"] == 29 and stats["target_samples_per_insert"] == 0.29
        assert stats["samples_per_insert"] == 0.29 and stats["reserved_samples"] == stats["sample_wait_count"] == 0

    def test_beyond_the_budget(self):
        buffer = self.limited(6, 0.5, batch_size=4)
        buffer.extend(batch(0, 9))
        buffer.sample()
        before = observed(buffer)
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="sample-to-insert ratio does not(.|\n)*budget 0 (.|\n)*wait=True"):
            buffer.sample(1)
        assert time.monotonic() - started < 5
        assert observed(buffer) == before
        with pytest.raises(TimeoutError, match="budget within 0.02 seconds"):
            buffer.sample(1, wait=True, timeout=0.02)
        with pytest.raises(RuntimeError, match="was cancelled"):
            buffer.sample(1, wait=True, cancel_event=Set)
        assert buffer.wait_until_sampleable(1, timeout=0.02) is False
        stats = buffer.stats()
        assert stats["reserved_samples"] == stats["waiting"] == 0 and stats["sample_wait_count"] >= 1
        buffer.extend(batch(9, 10))
        assert len(buffer.sample(1)) == 1 and not buffer.can_sample(1)

    @pytest.mark.parametrize("ratio", [2, 1.5, Fraction(1, 3)])
    def test_ratio_on_any_buffer(self, ratio):
        buffer = self.buffer(6, batch_size=1, samples_per_insert=ratio)
        buffer.extend(batch(0, 6))
        assert buffer.samples_per_insert == float(ratio)
        count = 0
        while buffer.can_sample():
            buffer.sample()
            count += 1
        assert count == math.floor(6 * Fraction(ratio))

    def test_the_ratio_can_be_changed(self):
        buffer = self.limited(6, 1, batch_size=2)
        buffer.extend(batch(0, 4))
        buffer.samples_per_insert = 3
        assert buffer.samples_per_insert == 3 and buffer.stats()["sample_budget"] == 12
        buffer.samples_per_insert = math.inf
        assert buffer.samples_per_insert == buffer.stats()["sample_budget"] == math.inf
        for _ in range(10):
            buffer.sample()
        buffer.samples_per_insert = 4
        assert buffer.stats()["sample_budget"] == -4 and not buffer.can_sample(1)
        for value, error in ((0, ValueError), (True, TypeError), ("1", TypeError), (math.nan, ValueError)):
            with pytest.raises(error, match="samples_per_insert"):
                buffer.samples_per_insert = value
        assert buffer.samples_per_insert == 4
        unlimited = self.buffer(6)
        assert unlimited.samples_per_insert is None
        with pytest.raises(RuntimeError, match="samples_per_insert"):
            unlimited.samples_per_insert = 2

    @pytest.mark.parametrize("ratio", [True, None, "1", 1j, 0, -1, math.nan, math.inf], ids=str)
    def test_what_is_no_ratio(self, ratio):
        error = ValueError if isinstance(ratio, (int, float)) and not isinstance(ratio, bool) else TypeError
        with pytest.raises(error, match="samples_per_insert must be a finite positive number"):
            self.limited(6, ratio)

    def test_configurations_that_can_only_fail(self):
        with pytest.raises(ValueError, match="prefetch"):
            self.limited(6, prefetch=2)
        with pytest.raises(ValueError, match="min_size_to_sample"):
            self.buffer(6, min_size_to_sample=7)
        with pytest.raises(TypeError, match="min_size_to_sample"):
            self.buffer(6, min_size_to_sample=True)
        with pytest.raises(ValueError, match="samples_per_insert"):
            self.buffer(6, max_inserts_ahead=4)
        with pytest.raises(NotImplementedError, match="update_priority"):
            self.plain(6).extend(batch(0, 2), update_priority=True)

    def test_min_size_to_sample(self):
        buffer = self.buffer(6, batch_size=1, min_size_to_sample=4)
        buffer.extend(batch(0, 3))
        assert not buffer.can_sample() and buffer.wait_until_sampleable(timeout=0) is False
        with pytest.raises(RuntimeError, match="3 records are there, 4 are needed"):
            buffer.sample()
        buffer.extend(batch(3, 4))
        assert buffer.can_sample() and len(buffer.sample()) == 1
        buffer.empty()
        assert not buffer.can_sample()

    def test_max_inserts_ahead_holds_writers(self):
        buffer = self.limited(20, 1, batch_size=2, max_inserts_ahead=4)
        buffer.extend(batch(0, 4), timeout=PATIENCE)
        with pytest.raises(TimeoutError, match="max_inserts_ahead"):
            buffer.extend(batch(4, 6), timeout=0.02)
        with pytest.raises(RuntimeError, match="cancelled"):
            buffer.add(batch(4, 5)[0], cancel_event=Set)
        assert buffer.write_count == 4
        thread, result = in_thread(lambda: buffer.extend(batch(4, 10), timeout=PATIENCE))
        for _ in range(3):
            buffer.sample(wait=True, timeout=PATIENCE)
            assert buffer.write_count <= buffer.stats()["samples_returned"] + 4 + 4
        thread.join(PATIENCE)
        assert result[0].tolist() == list(range(4, 10)) and buffer[:]["x"].tolist() == list(range(10))

    # -- waiting ---------------------------------------------------------------------------------------------------

    def test_a_wait_ends_with_the_write(self):
        for make in (self.buffer, self.limited):
            buffer = make(6, batch_size=2)
            thread, result = in_thread(lambda: buffer.sample(wait=True, timeout=PATIENCE))
            self._until(lambda: buffer.stats()["waiting"] == 1)
            assert not buffer.can_sample(1)
            with pytest.raises(RuntimeError):
                buffer.sample(1)
            buffer.extend(batch(0, 2))
            thread.join(PATIENCE)
            check_agreement(result[0])
            assert buffer.stats()["waiting"] == 0 and buffer.stats()["samples_returned"] == 2

    def test_wait_until_sampleable(self):
        buffer = self.limited(6, 1, batch_size=3)
        buffer.extend(batch(0, 2))
        assert buffer.wait_until_sampleable(2) is True and buffer.wait_until_sampleable(timeout=0) is False
        assert buffer.wait_until_sampleable(cancel_event=Set) is False
        assert buffer.wait_until_sampleable(cancel_event=cancel_after_first_look()) is False
        thread, result = in_thread(lambda: buffer.wait_until_sampleable(timeout=PATIENCE))
        buffer.extend(batch(2, 3))
        thread.join(PATIENCE)
        assert result == [True] and buffer.stats()["waiting"] == buffer.stats()["samples_returned"] == 0

    def test_timeout_and_cancellation_without_a_ratio(self):
        buffer = self.buffer(6, batch_size=3)
        with pytest.raises(TimeoutError, match="did not become sampleable for a batch of 3 items within 0.02 seconds"):
            buffer.sample(wait=True, timeout=0.02)
        with pytest.raises(RuntimeError, match="sampling was cancelled"):
            buffer.sample(wait=True, cancel_event=Set)
        with pytest.raises(RuntimeError, match="sampling was cancelled"):
            buffer.sample(wait=True, cancel_event=cancel_after_first_look())
        assert buffer.stats()["waiting"] == 0
        buffer.extend(batch(0, 1))
        assert len(buffer.sample(wait=True, timeout=0)) == 3

    def test_shutdown_ends_waits(self):
        for everywhere in (False, True):
            buffer = self.limited(6, batch_size=2)
            sampling, sampled = in_thread(lambda: buffer.sample(wait=True))
            waiting, waited = in_thread(buffer.wait_until_sampleable)
            self._until(lambda: buffer.stats()["waiting"] == 1)
            buffer.shutdown(1.0, everywhere=everywhere)
            for thread in (sampling, waiting):
                thread.join(PATIENCE)
            assert isinstance(sampled[0], RuntimeError) and "shut down replay buffer cannot be sampled" in str(sampled[0])
            assert isinstance(waited[0], RuntimeError) and "cannot become sampleable" in str(waited[0])

    def test_after_shutdown(self):
        buffer = self.buffer(6, batch_size=2)
        buffer.extend(batch(0, 3))
        assert buffer.is_alive and buffer.start() is buffer and buffer.client() is buffer and buffer.initialized
        buffer.shutdown()
        buffer.shutdown()
        assert not buffer.is_alive and not buffer.can_sample()
        for call, words in (
            (buffer.sample, "cannot be sampled"),
            (buffer.wait_until_sampleable, "cannot become sampleable"),
            (buffer.start, "cannot be restarted"),
            (lambda: buffer.extend(batch(0, 1)), "shut down"),
            (lambda: buffer.add(batch(0, 1)[0]), "shut down"),
        ):
            with pytest.raises(RuntimeError, match=words):
                call()
        assert len(buffer) == 3 and buffer[:]["x"].tolist() == [0, 1, 2], "records stay readable"

    # -- copying ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("way", ["pickle", "deepcopy", "state_dict"])
    def test_copies_carry_everything(self, way):
        buffer = self.limited(6, 2, batch_size=3)
        buffer.extend(batch(0, 8))
        buffer.sample()
        copied = self._copy(buffer, way)
        assert observed(copied) == observed(buffer) and type(copied) is type(buffer)
        assert copied.samples_per_insert == 2 and copied.batch_size == 3
        assert copied.extend(batch(50, 51)).tolist() == [2], "the cursor goes on"
        copied.sample()
        copied.storage.state.check_valid()
        same = self.shared and way == "pickle"
        assert buffer.write_count == (9 if same else 8) and buffer[2]["x"] == (50 if same else 2)
        assert generations(buffer, 6) == [1, 1, int(same), 0, 0, 0]
        check_agreement(copied[:])

    @pytest.mark.parametrize("way", ["pickle", "deepcopy", "state_dict"])
    def test_copies_of_an_empty_buffer(self, way):
        buffer = self.limited(6, 2, batch_size=3)
        copied = self._copy(buffer, way)
        assert len(copied) == copied.write_count == 0
        copied.extend(batch(0, 2))
        check_agreement(copied[:])

    def _copy(self, buffer, way):
        if way == "pickle":
            return pickle.loads(pickle.dumps(buffer))
        if way == "deepcopy":
            return copy.deepcopy(buffer)
        other = self.limited(6, 2, batch_size=3)
        other.load_state_dict(buffer.state_dict())
        return other

    def test_threads_share_a_buffer(self):
        buffer = self.buffer(64, batch_size=16)
        buffer.extend(batch(0, 64))
        stop = threading.Event()

        def read():
            count = 0
            while not stop.is_set():
                check_agreement(buffer.sample())
                count += 1
            return count

        def write(start):
            for i in range(start, start + 400, 4):
                buffer.extend(batch(i, i + 4))

        readers = [in_thread(read) for _ in range(2)]
        writers = [in_thread(write, start) for start in (10_000, 20_000)]
        for thread, _ in writers:
            thread.join(PATIENCE)
        stop.set()
        for thread, result in readers:
            thread.join(PATIENCE)
            assert isinstance(result[0], int), result
        assert buffer.write_count == 64 + 800 and sum(generations(buffer, 64)) == 800
        assert all(not isinstance(entry, BaseException) for _, result in writers for entry in result)
        buffer.storage.state.check_valid()

    @staticmethod
    def _until(condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.001)


each_kind(BufferContract, globals())


@pytest.mark.parametrize("data", [torch.arange(3), [1], (torch.arange(3),), {"a": torch.arange(3)}])
def test_a_tensordict_buffer_takes_tensordicts(data):
    buffer = sr.TensorDictReplayBuffer(storage=sr.LazyTensorStorage(4))
    with pytest.raises(ValueError, match="only accepts TensorDictBase"):
        buffer.extend(data)
    assert buffer.write_count == 0


@pytest.mark.parametrize("kind", [sr.LazyTensorStorage, sr.LazyMemmapStorage])
def test_sharing_and_back_keeps_everything(kind):
    buffer = sr.RateLimitedReplayBuffer(
        storage=kind(6), writer=sr.RoundRobinWriter(track_generations=True), samples_per_insert=2, batch_size=3
    )
    buffer.extend(batch(0, 8))
    buffer.sample()
    before = observed(buffer)
    assert not buffer.shared and buffer.path is None
    assert buffer.share() is buffer and buffer.shared and buffer.path is not None
    assert observed(buffer) == before and buffer.share() is buffer
    buffer.share(False)
    assert not buffer.shared and observed(buffer) == before
    check_agreement(buffer[:])
    assert buffer.extend(batch(8, 9)).tolist() == [2]


def test_storages_are_on_the_cpu():
    with pytest.raises(NotImplementedError, match="cuda"):
        sr.LazyTensorStorage(4, device="cuda")
