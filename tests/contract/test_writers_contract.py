"""What every writer does on every storage: slots, generations, counts; a refused write changes nothing."""

import numpy as np
import pytest
import torch
from kinds import batch, check_agreement, each_kind, generations, observed, state_bytes
from tensordict import NonTensorData, TensorDict

import shmreplay as sr


class WriterContract:
    def test_slots_follow_each_other(self):
        buffer = self.buffer(6)
        first = buffer.add(batch(0, 1)[0])
        assert first == 0 and type(first) is int
        index = buffer.extend(batch(1, 5))
        assert index.dtype == torch.int64 and index.tolist() == [1, 2, 3, 4]
        assert buffer.extend(batch(5, 8)).tolist() == [5, 0, 1]
        assert buffer[:]["x"].tolist() == [6, 7, 2, 3, 4, 5]
        assert buffer.write_count == 8 and len(buffer) == 6
        buffer.storage.state.check_valid()

    @pytest.mark.parametrize("n", [6, 7, 12, 13, 29])
    def test_longer_than_the_capacity(self, n):
        buffer = self.buffer(6)
        buffer.extend(batch(0, 4))
        index = buffer.extend(batch(4, 4 + n))
        assert index.tolist() == [(4 + i) % 6 for i in range(n)]
        expected = {(4 + i) % 6: 4 + i for i in range(n)}
        assert buffer[:]["x"].tolist() == [expected[slot] for slot in range(6)]
        check_agreement(buffer[:])
        writes = [sum((i % 6) == slot for i in range(4 + n)) for slot in range(6)]
        assert generations(buffer, 6) == [count - 1 for count in writes]
        assert buffer.write_count == 4 + n and len(buffer) == 6

    def test_generations_of_any_index(self):
        buffer = self.buffer(6)
        buffer.extend(batch(0, 8))
        of = buffer.writer.generations_of
        assert of(0) == 1 and of(0).shape == () and of(5).dtype == torch.int64
        assert of(torch.tensor([[0, 5], [1, 2]])).tolist() == [[1, 0], [1, 0]]
        assert of((torch.tensor([0, 3]), torch.tensor([9, 9]))).tolist() == [1, 0]
        assert of([0, 2]).tolist() == [1, 0] and of(np.array([1])).tolist() == [1]
        assert of(torch.tensor([], dtype=torch.int64)).shape == (0,)
        assert of(torch.tensor([1], dtype=torch.int32)).dtype == torch.int64
        assert of(torch.tensor([1.0, 9.0])).tolist() == [1, -1]

    def test_what_was_never_written_has_no_generation(self):
        buffer = self.buffer(6)
        bad = torch.tensor([-(2**62), -7, -6, -1, 6, 7, 2**62])
        assert buffer.writer.generations_of(bad).tolist() == [-1] * 7
        assert generations(buffer, 6) == [-1] * 6
        buffer.extend(batch(0, 2))
        assert generations(buffer, 6) == [0, 0, -1, -1, -1, -1]
        assert buffer.writer.generations_of(bad).tolist() == [-1] * 7

    def test_an_untracked_writer_says_nothing_but_advances(self):
        plain = self.buffer(6, track=False, batch_size=3)
        tracking = sr.TensorDictReplayBuffer(
            storage=plain.storage, writer=sr.TensorDictRoundRobinWriter(track_generations=True), batch_size=3
        )
        plain.extend(batch(0, 8))
        assert not plain.writer.tracks_generations and tracking.writer.tracks_generations
        for index in (0, torch.tensor([[0, 1]]), (torch.tensor([2]), torch.tensor([0]))):
            found = plain.writer.generations_of(index)
            assert (found == -1).all() and found.dtype == torch.int64
        assert generations(tracking, 6) == [1, 1, 0, 0, 0, 0]
        assert set(plain.sample().keys()) == {"x", "n", "wide", "index"}
        assert set(plain.sample(return_info=True)[1]) == {"index"}
        plain.empty()
        assert generations(tracking, 6) == [2, 2, 1, 1, 1, 1] and len(tracking) == 0

    def test_write_at(self):
        buffer = self.buffer(6, batch_size=4)
        buffer.extend(batch(0, 3))
        index = torch.tensor([2, 0])
        assert buffer.writer.write_at(index, batch(50, 52)) is index
        assert buffer[:]["x"].tolist() == [51, 1, 50] and generations(buffer, 4) == [1, 0, 1, -1]
        assert buffer.writer.write_at(1, batch(60, 61)[0]) == 1
        assert buffer.writer.write_at(1, batch(61, 62)) == 1
        buffer.writer.write_at([0, 0, 0], batch(70, 73))
        assert buffer[:]["x"].tolist() == [72, 61, 50] and generations(buffer, 4) == [4, 2, 1, -1]
        assert buffer.write_count == 10 and len(buffer) == 3
        assert buffer.extend(batch(3, 5)).tolist() == [3, 4], "write_at moved the cursor"
        check_agreement(buffer[:])
        buffer.storage.state.check_valid()

    def test_write_at_beyond_what_was_written(self):
        buffer = self.buffer(6, batch_size=4)
        buffer.extend(batch(0, 2))
        buffer.writer.write_at(torch.tensor([4]), batch(50, 51))
        assert len(buffer) == 3 and buffer[:]["x"].tolist() == [0, 1, 50] and buffer[4]["x"] == 50
        assert buffer.stats()["storage_size"] == 5 and generations(buffer, 6) == [0, 0, -1, -1, 0, -1]
        with pytest.raises(IndexError):
            buffer[3]
        for _ in range(20):
            sample = buffer.sample()
            assert set(sample["index"].tolist()) <= {0, 1, 4} and set(sample["x"].tolist()) <= {0, 1, 50}
        buffer.storage.state.check_valid()

    def test_write_at_many_slots(self):
        buffer = self.buffer(400, batch_size=4)
        index = torch.cat([torch.randperm(400), torch.tensor([7, 7, 399])])
        buffer.writer.write_at(index, batch(0, 403))
        expected = dict(zip(index.tolist(), range(403)))
        assert buffer[:]["x"].tolist() == [expected[slot] for slot in range(400)]
        assert generations(buffer, 400) == [(index == slot).sum().item() - 1 for slot in range(400)]
        buffer.storage.state.check_valid()

    @pytest.mark.parametrize(
        "index, data, error",
        [
            (torch.tensor([6]), batch(0, 1), IndexError),
            (torch.tensor([-1]), batch(0, 1), IndexError),
            (torch.tensor([0, 9]), batch(0, 2), IndexError),
            (torch.tensor([0, 1]), batch(0, 3), ValueError),
            (torch.tensor([0, 1, 2]), batch(0, 2), ValueError),
            (7, batch(0, 1)[0], IndexError),
        ],
    )
    def test_refused_write_at(self, index, data, error):
        buffer = self.buffer(6, batch_size=4)
        buffer.extend(batch(0, 8))
        before = state_bytes(buffer), observed(buffer)
        with pytest.raises(error):
            buffer.writer.write_at(index, data)
        assert (state_bytes(buffer), observed(buffer)) == before

    REFUSED = {
        "dtype": lambda d: d.set("x", d["x"].double()),
        "shape": lambda d: d.set("x", d["x"][:, None].expand(-1, 2)),
        "column dtype": lambda d: d.set("wide", d["wide"].half()),
        "column shape": lambda d: d.set("wide", d["wide"][:, 1:]),
        "missing": lambda d: d.exclude("x"),
        "missing nested": lambda d: d.exclude(("n", "y")),
        "extra": lambda d: d.set("more", d["x"]),
        "extra nested": lambda d: d.set(("n", "z"), d["x"]),
        "leaf for node": lambda d: d.set("n", d["x"]),
        "text": lambda d: d.set("x", NonTensorData("no", batch_size=d.batch_size)),
    }

    @pytest.mark.parametrize("name", REFUSED)
    def test_a_refused_write_changes_nothing(self, name):
        if not self.fixed_layout:
            pytest.skip("this storage takes any record")
        buffer = self.buffer(6, batch_size=4)
        buffer.extend(batch(0, 8))
        bad = self.REFUSED[name](batch(20, 23))
        before = state_bytes(buffer), observed(buffer)
        for write in (
            lambda: buffer.extend(bad),
            lambda: buffer.add(bad[0]),
            lambda: buffer.writer.write_at(torch.tensor([0, 1, 2]), bad),
            lambda: buffer.extend(bad, timeout=1),
        ):
            with pytest.raises((ValueError, KeyError, TypeError)) as caught:
                write()
            assert isinstance(caught.value, sr.ShmReplayError)
            assert (state_bytes(buffer), observed(buffer)) == before
        check_agreement(buffer[:])
        assert buffer.extend(batch(8, 9)).tolist() == [2]

    def test_a_refused_first_write_leaves_the_layout_open(self):
        buffer = self.plain(6)
        if self.fixed_layout:
            with pytest.raises(TypeError, match="'words'"):
                buffer.extend(TensorDict({"a": torch.zeros(2), "words": NonTensorData("no", batch_size=[2])}, [2]))
        with pytest.raises(RuntimeError, match="Expected at least one element in extend"):
            buffer.extend(torch.zeros(0, 3))
        assert buffer.write_count == len(buffer) == 0
        buffer.extend(torch.arange(3))
        assert buffer[:].tolist() == [0, 1, 2]

    @pytest.mark.parametrize("data", [batch(0, 0), batch(0, 2)[:0]], ids=["made", "sliced"])
    def test_empty_batches(self, data):
        buffer = self.buffer(6)
        buffer.extend(batch(0, 2))
        before = state_bytes(buffer)
        with pytest.raises(RuntimeError, match="Expected at least one element in extend"):
            buffer.extend(data)
        assert state_bytes(buffer) == before

    def test_index_is_neither_stored_nor_written_back(self):
        buffer = self.buffer(6, batch_size=4)
        given = batch(0, 4)
        buffer.extend(given)
        assert "index" not in given.keys()
        sample = buffer.sample()
        assert (sample["index"] == sample["x"]).all()
        buffer.extend(sample)  # what was sampled goes in again
        assert set(buffer[:].keys()) == {"x", "n", "wide"}
        sample = buffer.sample()
        assert (sample["index"] < 6).all() and sample["index"].dtype == torch.int64


each_kind(WriterContract, globals())
