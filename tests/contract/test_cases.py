"""Faults that users met in buffers like this one, over several processes: the right value for each kind."""

import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import servants
import torch
from servants import FORK, PATIENCE, SPAWN, all_at_once, in_fork, in_thread, pairs
from tensordict import TensorDict

import shmreplay as sr
from shmreplay.shm.folders import folder

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def shared(capacity=8, kind=sr.LazyTensorStorage, **options):
    options.setdefault("writer", sr.TensorDictRoundRobinWriter(track_generations=True))
    return sr.TensorDictReplayBuffer(storage=kind(capacity), shared=True, **options)


def limited(capacity=8, ratio=1.0, **options):
    return shared(capacity, samples_per_insert=ratio, **options)


def until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.001)


# -- one truth in every process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [sr.LazyTensorStorage, sr.LazyMemmapStorage])
def test_every_process_sees_the_same_after_every_call(crew, kind):
    buffer = limited(6, 2, kind=kind, batch_size=2)
    one, two = crew[:2]

    def check(expected_generations):
        views = [servants.seen(buffer), one.call(servants.seen, buffer), two.call(servants.seen, buffer)]
        assert views[0] == views[1] == views[2]
        assert views[0]["generations"] == [-1, *expected_generations, -1, -1]

    check([-1] * 6)
    one.call(servants.extend, buffer, 0, 4)  # the first write fixes the layout, in another process
    check([0, 0, 0, 0, -1, -1])
    buffer.sample()
    two.call(servants.call, buffer, "sample", 3)
    check([0, 0, 0, 0, -1, -1])
    assert buffer.stats()["samples_returned"] == 5
    saved = buffer.state_dict()
    two.call(servants.extend, buffer, 4, 9)
    check([1, 1, 1, 0, 0, 0])
    one.call(servants.empty_and_extend, buffer, 50, 51)
    check([3, 2, 2, 1, 1, 1])
    one.call(servants.call, buffer, "load_state_dict", saved)
    check([4, 3, 3, 2, 2, 2])
    buffer.samples_per_insert = 3
    check([4, 3, 3, 2, 2, 2])
    buffer.storage.state.check_valid()


def test_an_overwrite_elsewhere_shows_after_a_load_with_workers_alive(servant):
    buffer = shared(4)
    index = buffer.extend(pairs(0, 4))
    assert servant.call(servants.generations, buffer, 4) == [-1, 0, 0, 0, 0]
    buffer.load_state_dict(buffer.state_dict())
    before = buffer.writer.generations_of(index)
    servant.call(servants.extend, buffer, 50, 54)
    assert buffer[:]["x"].tolist() == [50, 51, 52, 53]
    assert (buffer.writer.generations_of(index) == before + 1).all()


def test_generations_of_a_ring_that_grows_in_several_processes(crew):
    buffer = shared(2**20 + 8)
    buffer.extend(pairs(0, 4))
    all_at_once(crew, (servants.extend, buffer, 0, 100_000, 25_000), (servants.extend, buffer, 0, 100_000))
    assert buffer.write_count == len(buffer) == 200_004
    found = buffer.writer.generations_of(torch.arange(2**20 + 8))
    assert (found[:200_004] == 0).all() and (found[200_004:] == -1).all()
    buffer.storage.state.check_valid()


def test_emptying_makes_every_handle_stale_for_good(servant):
    buffer = shared(4)
    index = buffer.extend(pairs(0, 3))
    handles = [buffer.writer.generations_of(index)]
    saved = buffer.state_dict()
    servant.call(servants.empty_and_extend, buffer, 50, 54)
    assert buffer.writer.generations_of(3) == 0, "never written before"
    handles.append(buffer.writer.generations_of(index))
    buffer.load_state_dict(saved)
    handles.append(buffer.writer.generations_of(index))
    servant.call(servants.call, buffer, "empty")
    handles.append(buffer.writer.generations_of(index))
    for older, newer in zip(handles, handles[1:]):
        assert (newer > older).all(), "a handle came alive again"


def test_generations_outlive_an_emptied_snapshot():
    buffer = shared(4)
    buffer.extend(pairs(0, 6))
    buffer.empty()
    other = shared(4)
    other.load_state_dict(buffer.state_dict())
    assert other.writer.generations_of(torch.arange(4)).tolist() == [2, 2, 1, 1]
    assert len(other) == 0 and other.extend(pairs(0, 1)).tolist() == [0] and other.writer.generations_of(0) == 3


def test_look_ups_neither_clamp_nor_wrap():
    buffer = shared(4)
    buffer.extend(pairs(0, 7))
    for bad in (4, 9, -1, -4, -5, 2**40):
        assert buffer.writer.generations_of(bad) == -1


def test_stamps_belong_to_the_storage(servant):
    tracked = shared(4)
    index = tracked.extend(pairs(0, 4))
    before = tracked.writer.generations_of(index)
    plain = sr.TensorDictReplayBuffer(storage=tracked.storage, writer=sr.TensorDictRoundRobinWriter())
    servant.call(servants.extend, plain, 20, 22)
    assert tracked.writer.generations_of(index).tolist() == [1, 1, 0, 0] and tracked[:]["x"].tolist() == [20, 21, 2, 3]
    servant.call(servants.call, plain, "empty")
    assert (tracked.writer.generations_of(index) > before).all() and len(tracked) == 0


# -- whole records, every one counted ------------------------------------------------------------------------------


def test_no_torn_rows_with_two_writers_and_two_samplers(crew):
    buffer = shared(64, batch_size=32)
    buffer.extend(pairs(0, 64))
    torn = all_at_once(
        crew,
        (servants.extend, buffer, 10**6, 10**6 + 4000, 4),
        (servants.extend, buffer, 2 * 10**6, 2 * 10**6 + 4000, 4),
        (servants.count_torn, buffer, 1000, 32),
        (servants.count_torn, buffer, 1000, 32),
    )
    assert torn[2:] == [0, 0] and buffer.write_count == 64 + 8000
    assert (buffer[:]["x"] == buffer[:]["y"]).all()
    buffer.storage.state.check_valid()


def test_no_write_is_lost_among_four_writers(crew):
    for _ in range(3):
        buffer = shared(800)
        all_at_once(crew, *[(servants.add, buffer, 1000 * i, 1000 * i + 200) for i in range(4)])
        assert len(buffer) == buffer.write_count == 800
        x = buffer[:]["x"]
        assert sorted(x.tolist()) == sorted(1000 * i + k for i in range(4) for k in range(200))
        for i in range(4):  # each writer's own records in its order
            mine = x[(x >= 1000 * i) & (x < 1000 * i + 200)]
            assert (mine.diff() > 0).all()
        assert (buffer.writer.generations_of(torch.arange(800)) == 0).all()


# -- the sample budget ---------------------------------------------------------------------------------------------


def test_learners_share_one_budget_and_use_it_up(crew):
    buffer = limited(64, 2.0)
    buffer.extend(pairs(0, 50))
    counts = all_at_once(crew, *[(servants.drain, buffer, 4, 100)] * 4)
    stats = buffer.stats()
    assert sum(counts) == stats["samples_returned"] == 100
    assert stats["sample_budget"] == stats["reserved_samples"] == stats["waiting"] == 0


def test_the_ratio_is_reached_while_writers_go_on(crew):
    buffer = limited(256, 8.0, batch_size=8)
    results = all_at_once(
        crew,
        (servants.extend, buffer, 0, 200, 4),
        (servants.extend, buffer, 0, 200, 4),
        (servants.drain, buffer, 8, 3200),
        (servants.drain, buffer, 8, 3200),
    )
    stats = buffer.stats()
    assert stats["write_count"] == 400 and sum(results[2:]) == stats["samples_returned"] == 3200
    assert stats["samples_per_insert"] == stats["target_samples_per_insert"] == 8.0 and not buffer.can_sample(1)


class Troubled(sr.RandomSampler):
    """Fails while ``trouble`` is set."""

    trouble = None

    def sample(self, storage, batch_size):
        if self.trouble is not None:
            raise self.trouble
        return super().sample(storage, batch_size)


@pytest.mark.parametrize("trouble", [ValueError("boom"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_failed_sample_gives_its_budget_back(trouble):
    buffer = limited(16, sampler=Troubled())
    buffer.extend(pairs(0, 8))
    buffer.sampler.trouble = trouble
    for _ in range(3):
        with pytest.raises(type(trouble)):
            buffer.sample(4)
    buffer.sampler.trouble = None
    stats = buffer.stats()
    assert stats["reserved_samples"] == stats["samples_returned"] == 0
    assert len(buffer.sample(4)) + len(buffer.sample(4)) == 8 and not buffer.can_sample(1)


def test_a_collate_fn_that_fails_gives_budget_back_and_wakes_who_waits():
    entered, go_on = threading.Event(), threading.Event()

    def collate(data):
        if threading.current_thread() is threading.main_thread():
            return data
        entered.set()
        assert go_on.wait(PATIENCE)
        raise ValueError("collate")

    buffer = limited(16, batch_size=8, collate_fn=collate)
    buffer.extend(pairs(0, 8))
    failing, failed = in_thread(buffer.sample)
    assert entered.wait(PATIENCE)
    assert buffer.stats()["reserved_samples"] == 8 and not buffer.can_sample(1)
    threading.Thread(target=lambda: (until(lambda: buffer.stats()["waiting"] == 1), go_on.set()), daemon=True).start()
    assert len(buffer.sample(8, wait=True, timeout=PATIENCE)) == 8
    failing.join(PATIENCE)
    assert isinstance(failed[0], ValueError) and buffer.stats()["samples_returned"] == 8


@pytest.mark.parametrize("how", ["load", "empty"])
def test_a_reservation_of_a_passed_epoch_changes_nothing(how):
    inside, go_on = threading.Event(), threading.Event()

    class Parked(sr.RandomSampler):
        def sample(self, storage, batch_size):
            drawn = super().sample(storage, batch_size)
            if threading.current_thread() is not threading.main_thread() and not inside.is_set():
                inside.set()
                assert go_on.wait(PATIENCE)
            return drawn

    buffer = limited(16, sampler=Parked())
    buffer.extend(pairs(0, 8))
    saved = buffer.state_dict()
    thread, _ = in_thread(lambda: buffer.sample(4))
    assert inside.wait(PATIENCE) and buffer.stats()["reserved_samples"] == 4
    if how == "load":
        buffer.load_state_dict(saved)
    else:
        buffer.empty()
        buffer.extend(pairs(0, 8))
    assert buffer.stats()["reserved_samples"] == 0 and buffer.stats()["sample_budget"] == 8
    go_on.set()
    thread.join(PATIENCE)
    taken = buffer.stats()["samples_returned"]
    assert taken in (0, 4), "the parked call asked again, or was given up"
    assert buffer.stats()["reserved_samples"] == 0
    while buffer.can_sample(1):
        taken += len(buffer.sample(1))
    assert taken == 8
    buffer.storage.state.check_valid()


@pytest.mark.parametrize("large", [2**31 - 4, 2**53 - 3, 2**60])
def test_counters_beyond_32_and_53_bits(servant, large):
    buffer = limited(8)
    buffer.extend(pairs(0, 8))
    state = buffer.state_dict()
    state["_writer"]["_write_count"] = large
    state["_sampled_items"] = state["_rate_limit"]["_samples_returned"] = large
    buffer.load_state_dict(state)
    servant.call(servants.extend, buffer, 0, 8)
    assert buffer.write_count == large + 8 and buffer.stats()["sample_budget"] == 8
    assert servant.call(servants.seen, buffer)["write_count"] == large + 8
    buffer.sample(5)
    assert buffer.state_dict()["_rate_limit"]["_samples_returned"] == large + 5


def test_writers_are_never_held_by_the_ratio():
    buffer = limited(8, 0.5)
    for i in range(300):
        buffer.extend(pairs(i, i + 4))
    assert buffer.write_count == 1200 and len(buffer.sample(4)) == 4


def test_a_refusal_says_whether_data_or_ratio_is_missing():
    buffer = limited(8, 0.5)
    with pytest.raises(RuntimeError, match="data: 0 records are there, 1 are needed"):
        buffer.sample(4)
    buffer.extend(pairs(0, 4))
    with pytest.raises(RuntimeError, match="samples_per_insert=0.5, 4 records inserted, 0 sampled.*budget 2 for a batch of 4"):
        buffer.sample(4)
    with pytest.raises(TimeoutError, match="samples_per_insert=0.5, 4 records inserted"):
        buffer.sample(4, wait=True, timeout=0.01)


# -- snapshots -----------------------------------------------------------------------------------------------------


def drain(buffer) -> int:
    count = 0
    while buffer.can_sample(4):
        count += len(buffer.sample(4))
    return count


def test_a_resumed_run_owes_what_the_old_one_owed():
    buffer = limited(64)
    for i in range(0, 1000, 50):
        buffer.extend(pairs(i, i + 50))
    assert drain(buffer) == 1000
    resumed = limited(64)
    resumed.load_state_dict(buffer.state_dict())
    assert len(resumed) == 64 and drain(resumed) == 0 and resumed.stats()["samples_returned"] == 1000
    with pytest.raises(TimeoutError, match="ratio"):
        resumed.sample(4, wait=True, timeout=0.01)
    resumed.extend(pairs(0, 8))
    assert drain(resumed) == 8


def test_a_snapshot_without_the_ratio_is_refused_and_changes_nothing():
    free, buffer = shared(8), limited(8)
    free.extend(pairs(0, 8))
    buffer.extend(pairs(20, 24))
    before = servants.seen(buffer)
    with pytest.raises(KeyError, match="_rate_limit"):
        buffer.load_state_dict(free.state_dict())
    assert servants.seen(buffer) == before


@pytest.mark.parametrize("missing", [("_writer", "_write_count"), ("_writer",), ("_storage",)])
def test_a_snapshot_in_pieces_is_refused_and_changes_nothing(missing):
    buffer = limited(8)
    buffer.extend(pairs(0, 8))
    state, before = buffer.state_dict(), servants.seen(buffer)
    where = state
    for key in missing[:-1]:
        where = where[key]
    del where[missing[-1]]
    with pytest.raises(KeyError):
        buffer.load_state_dict(state)
    assert servants.seen(buffer) == before


def test_a_snapshot_from_before_some_fields_still_loads():
    buffer = shared(4)
    buffer.extend(pairs(0, 10))
    state = buffer.state_dict()
    for key in ("_generation", "_ring_cursor"):
        del state["_writer"][key]
    for key in ("_sample_calls", "_sampled_items", "_rng", "_transforms"):
        state.pop(key, None)
    del state["_storage"]["_index"]
    other = shared(4)
    other.load_state_dict(state)
    assert other.write_count == 10 and other[:]["x"].tolist() == [8, 9, 6, 7]
    assert other.extend(pairs(90, 91)).tolist() == [2], "the cursor goes on"


def test_a_snapshot_aliases_nothing():
    buffer, other = shared(4), shared(4)
    buffer.extend(pairs(0, 4))
    state = buffer.state_dict()
    buffer.extend(pairs(10, 14))
    other.load_state_dict(state)
    assert other[:]["x"].tolist() == [0, 1, 2, 3]
    other.extend(pairs(20, 22))
    state["_storage"]["_storage"]["x"].fill_(-1)
    state["_writer"]["_generation"].fill_(99)
    assert buffer[:]["x"].tolist() == [10, 11, 12, 13] and other[:]["x"].tolist() == [20, 21, 2, 3]
    assert buffer.writer.generations_of(torch.arange(4)).tolist() == [1] * 4


def test_a_snapshot_that_does_not_fit_changes_nothing():
    large, small = shared(8), shared(4)
    large.extend(pairs(0, 8))
    small.extend(pairs(50, 54))
    before = servants.seen(small)
    with pytest.raises(ValueError, match="slot"):
        small.load_state_dict(large.state_dict())
    state = large.state_dict()
    state["_storage"]["_storage"] = state["_storage"]["_storage"].apply(lambda leaf: leaf.float())
    with pytest.raises(ValueError):
        large.load_state_dict(state)
    assert servants.seen(small) == before and large[:]["x"].tolist() == list(range(8))


# -- waiting -------------------------------------------------------------------------------------------------------


def test_a_write_wakes_a_waiting_process(servant):
    buffer = shared(8)
    buffer.extend(pairs(0, 1))
    buffer.empty()
    lags = []
    for i in range(5):
        servant.ask(servants.wait_for_sample, buffer, 4)
        until(lambda: buffer.stats()["waiting"] == 1)
        started = time.monotonic()
        buffer.extend(pairs(i, i + 1))
        assert servant.answer() == [i] * 4
        lags.append(time.monotonic() - started)
        buffer.empty()
    assert sorted(lags)[2] < 2, lags  # the bench measures it; this finds a wake-up that never comes


def test_a_wait_keeps_its_deadline_and_rests():
    buffer = shared(8)
    for call in (lambda: buffer.wait_until_sampleable(4, timeout=0.4), lambda: buffer.sample(4, wait=True, timeout=0.4)):
        started, used = time.monotonic(), time.thread_time()
        try:
            assert call() is False
        except TimeoutError:
            pass
        assert 0.4 <= time.monotonic() - started < 5
        assert time.thread_time() - used < 0.1


# -- folders and segments ------------------------------------------------------------------------------------------


def test_a_used_folder_is_refused_or_continued_never_mixed(tmp_path):
    place = str(tmp_path / "records")
    buffer = shared(6, lambda n: sr.LazyMemmapStorage(n, scratch_dir=place))
    buffer.extend(pairs(1, 9))
    with pytest.raises(FileExistsError, match="in use"):
        sr.LazyMemmapStorage(6, scratch_dir=place, existsok=True)
    before = servants.seen(buffer)
    del buffer
    with pytest.raises(FileExistsError, match="existsok"):
        sr.LazyMemmapStorage(6, scratch_dir=place)
    with pytest.raises(ValueError, match="6 slots"):
        sr.LazyMemmapStorage(7, scratch_dir=place, existsok=True)
    again = shared(6, lambda n: sr.LazyMemmapStorage(n, scratch_dir=place, existsok=True))
    after = servants.seen(again)
    for key in ("len", "write_count", "generations", "x"):
        assert after[key] == before[key]
    assert again.extend(pairs(9, 10)).tolist() == [2]


def test_unrelated_interpreters_come_and_go(tmp_path):
    place = str(tmp_path / "records")
    buffer = shared(8, lambda n: sr.LazyMemmapStorage(n, scratch_dir=place))
    buffer.extend(pairs(0, 8))
    code = (
        "import sys, shmreplay; rb = shmreplay.attach(sys.argv[1]); assert len(rb) == 8, len(rb); "
        "assert rb.writer.tracks_generations and rb.sample(4)['x'].max() < 8; rb.extend(rb.sample(2))"
    )
    paths = [entry for entry in sys.path if entry]
    for handle in (buffer.path, buffer.storage.segment.path):
        ran = subprocess.run(
            [sys.executable, "-c", code, handle], capture_output=True, text=True, timeout=PATIENCE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "leaked" not in ran.stderr and "resource_tracker" not in ran.stderr
    assert buffer.write_count == 12 and buffer.stats()["live_members"] == 1
    buffer.extend(pairs(8, 12))
    assert buffer.write_count == 16


def test_attaching_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="no replay buffer"):
        sr.attach(str(tmp_path))
    buffer = shared(4)
    path = buffer.path
    with pytest.raises(FileNotFoundError, match="no buffer 3"):
        sr.attach(path, buffer=3)
    del buffer
    with pytest.raises(FileNotFoundError, match="no replay buffer"):
        sr.attach(path)


def test_what_a_dead_process_wrote_stays_readable():
    buffer = shared(16)
    in_fork(servants.extend, buffer, 0, 4)  # it also allocated the records
    in_fork(servants.die_at, "shmreplay.committed", servants.extend, buffer, 4, 8, expect=-9)
    assert buffer[:]["x"].tolist() == list(range(8)) and buffer.sample(8)["x"].max() < 8
    assert buffer.write_count == 8 and buffer.writer.generations_of(torch.arange(9)).tolist() == [0] * 8 + [-1]


@pytest.mark.parametrize("point", ["shmreplay.reserved", "shmreplay.copied", "shmreplay.layout.created"])
def test_a_writer_killed_in_the_middle_holds_nobody_up(point):
    buffer = shared(8)
    first = 0 if point == "shmreplay.layout.created" else 8
    if first:
        buffer.extend(pairs(0, 8))
    in_fork(servants.die_at, point, servants.extend, buffer, 50, 52, expect=-9)
    started = time.monotonic()
    in_fork(servants.extend, buffer, 60, 64)
    assert time.monotonic() - started < 60
    found = buffer[:]
    assert (found["x"] == found["y"]).all() and not (found["x"] // 10 == 5).any()
    assert buffer.write_count == first + 4 and {60, 61, 62, 63} <= set(found["x"].tolist())
    sample = buffer.sample(64)
    assert (sample["x"] == sample["y"]).all() and len(buffer) == len(found)
    buffer.storage.state.check_valid()


def test_a_learner_killed_with_budget_gives_it_back():
    buffer = limited(8)
    buffer.extend(pairs(0, 8))
    in_fork(servants.die_at, "shmreplay.admitted", servants.draw, buffer, 8, expect=-9)
    assert len(buffer.sample(8, wait=True, timeout=PATIENCE)) == 8
    stats = buffer.stats()
    assert stats["samples_returned"] == 8 and stats["reserved_samples"] == 0 and stats["dead_members"] == 1


def test_killed_owners_leave_nothing():
    sr.cleanup_stale()
    before = set(os.listdir(folder()))
    for _ in range(3):
        in_fork(servants.own_and_die, 4096, expect=-9)
    assert len(set(os.listdir(folder())) - before) <= 1, "each creation sweeps what the dead left"
    sr.cleanup_stale()
    assert set(os.listdir(folder())) <= before


def test_a_folder_of_a_killed_owner_can_be_opened_again(tmp_path):
    for life in range(3):
        in_fork(servants.reopen_and_die, str(tmp_path / "records"), 8 * life, expect=-9)
    sr.cleanup_stale()
    storage = sr.LazyMemmapStorage(8, scratch_dir=str(tmp_path / "records"), existsok=True)
    assert storage.write_count == 24 and len(storage) == 8


def test_no_room_is_an_error_that_says_so():
    room = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    before = set(os.listdir(folder()))
    n = room // 4096 + 4096
    record = TensorDict({"x": torch.zeros(1, 1024)}, [1])
    for _ in range(2):
        buffer = shared(n)
        with pytest.raises(OSError, match="(?s)bytes|GiB|MiB") as caught:
            buffer.extend(record)
        assert isinstance(caught.value, sr.SpaceError) and caught.value.errno
        assert buffer.write_count == len(buffer) == 0
        assert not os.path.exists(os.path.join(buffer.path, "records"))
    del buffer, caught
    assert set(os.listdir(folder())) <= before


def test_descriptors_do_not_grow_with_calls(crew):
    buffer = shared(64)
    buffer.extend(pairs(0, 64))
    assert max(all_at_once(crew, *[(servants.descriptors_used, buffer, 300)] * 3)) <= 1


# -- fork, spawn, pickles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method(method):
    context = multiprocessing.get_context(method)
    buffer = shared(16)
    processes = [context.Process(target=servants.extend, args=(buffer, 4 * r, 4 * r + 4)) for r in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(buffer[:]["x"].tolist()) == list(range(8)) and buffer.write_count == 8


def test_a_handle_holds_no_data():
    buffer = shared(4096, sampler=sr.RandomSampler())
    buffer.extend(pairs(0, 4096, obs=torch.zeros(4096, 1024)))
    assert len(pickle.dumps(buffer)) < 4096


def test_what_pickling_means():
    alone = sr.ReplayBuffer(storage=sr.LazyTensorStorage(8))
    alone.extend(torch.arange(8))
    copied = pickle.loads(pickle.dumps(alone))
    copied.extend(torch.arange(10, 12))
    assert alone[0] == 0 and copied[0] == 10 and (alone.write_count, copied.write_count) == (8, 10)
    together = shared(8)
    together.extend(pairs(0, 8))
    handle = pickle.loads(pickle.dumps(together))
    handle.extend(pairs(10, 12))
    assert together[0]["x"] == 10 and together.write_count == 10 and handle.path == together.path


def test_use_through_a_second_handle_inside_a_call():
    buffer = shared(8)
    buffer.extend(pairs(0, 8))
    handle = pickle.loads(pickle.dumps(buffer))

    class Nested(sr.RandomSampler):
        def sample(self, storage, batch_size):
            handle.extend(pairs(5, 9))
            assert len(handle.sample(4)) == 4
            return super().sample(storage, batch_size)

    outer = sr.TensorDictReplayBuffer(storage=buffer.storage, sampler=Nested(), samples_per_insert=5.0)
    thread, result = in_thread(lambda: outer.sample(4))
    thread.join(PATIENCE)
    assert len(result[0]) == 4 and buffer.write_count == 12


def test_fork_while_a_thread_writes():
    buffer = shared(16)
    buffer.extend(pairs(0, 16))
    stop = threading.Event()

    def churn():
        i = 0
        while not stop.is_set():
            buffer.extend(pairs(i, i + 16))
            i += 16
        return i

    thread, result = in_thread(churn)
    try:
        for _ in range(6):
            in_fork(_no_torn_rows, buffer)
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert isinstance(result[0], int) and buffer.write_count == 16 + result[0]
    buffer.storage.state.check_valid()


def _no_torn_rows(buffer):
    assert servants.count_torn(buffer, 30, 8) == 0


def test_an_unshared_buffer_refuses_a_forked_child():
    buffer = sr.TensorDictReplayBuffer(storage=sr.LazyTensorStorage(8))
    buffer.extend(pairs(0, 8))
    in_fork(_is_refused, buffer)
    assert buffer.write_count == 8


def _is_refused(buffer):
    for name, args in (("extend", (pairs(0, 1),)), ("sample", (2,)), ("empty", ()), ("state_dict", ())):
        try:
            getattr(buffer, name)(*args)
        except RuntimeError as error:
            assert "share()" in str(error), error
        else:
            raise AssertionError(name)


@pytest.mark.parametrize("method", [FORK, SPAWN], ids=["fork", "spawn"])
def test_processes_draw_different_indices(method, crew):
    torch.manual_seed(0)
    buffer = shared(10_000)
    buffer.extend(pairs(0, 10_000))
    if method is SPAWN:
        draws = set(all_at_once(crew, *[(servants.draw, buffer, 32)] * 4))
    else:
        queue = method.SimpleQueue()
        for _ in range(3):
            in_fork(servants.draw_into, buffer, 32, queue)
        draws = {queue.get() for _ in range(3)} | {servants.draw(buffer, 32)}
    assert len(draws) == 4


def test_cpu_storages_never_touch_cuda():
    in_fork(servants.refuse_cuda, shared(8))
    in_fork(_make_and_use_without_cuda)


def _make_and_use_without_cuda():
    servants.refuse_cuda(shared(8))


def test_a_fork_after_openmp_does_not_hang():
    buffer = shared(256)
    buffer.extend(pairs(0, 256, obs=torch.rand(256, 4096)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (torch.rand(600, 600) @ torch.rand(600, 600)).sum()
        buffer.sample(256)
        in_fork(_no_torn_rows, buffer)
    finally:
        torch.set_num_threads(before)


def test_four_ranks_share_one_buffer_without_copies(crew):
    n, rounds, size = 4000, 25, 40
    buffer = limited(n, 1.0, batch_size=size)
    x = torch.arange(n)
    buffer.extend(pairs(0, n, obs=x[:, None].expand(-1, 2048).float()))  # 33 MB
    results = all_at_once(crew, *[(servants.sample_many, buffer, rounds, size)] * 4)
    assert [total for total, _ in results] == [rounds * size] * 4
    stats = buffer.stats()
    assert stats["samples_returned"] == n and stats["sample_budget"] == 0 and stats["sample_calls"] == 4 * rounds
    assert max(grown for _, grown in results) < 16_000_000, "a private copy of the data"


def test_temporary_record_files_go_with_the_buffer():
    buffer = shared(8, sr.LazyMemmapStorage)
    buffer.extend(pairs(0, 8))
    place = buffer.storage.scratch_dir
    assert os.path.isdir(place) and place.startswith(tempfile.gettempdir())
    del buffer
    assert not os.path.exists(place)


def test_lifting_the_ratio_wakes_who_waits(servant):
    buffer = limited(8)
    buffer.extend(pairs(0, 2))
    servant.ask(servants.wait_for_sample, buffer, 8)
    until(lambda: buffer.stats()["waiting"] == 1)
    buffer.samples_per_insert = math.inf
    assert len(servant.answer()) == 8
