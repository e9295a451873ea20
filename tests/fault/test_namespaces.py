"""A clear error for what cannot work: other pid namespaces, versions, boots; tables that are full."""

import fcntl
import os
import subprocess
import sys

import pytest

from lives_common import pairs, torn, whole
from nursery import HERE, ROOT, home  # noqa: F401
from shmreplay import LazyTensorStorage, MembersFullError, ReplayBuffer, TensorDictReplayBuffer, VersionError, attach
from shmreplay.shm import table
from shmreplay.shm.members import _F_OFD_SETLK, _flock
from shmreplay.state.ring import Write

ATTACH = """
import sys
import lives_common, shmreplay
try:
    buffer = shmreplay.attach(sys.argv[1])
    buffer.extend(lives_common.pairs(8, 16))
    print("live", buffer.stats()["live_members"], flush=True)
    sys.stdin.readline()
    buffer.extend(lives_common.pairs(16, 24))
    print("done", lives_common.torn(buffer.sample(8)), flush=True)
except shmreplay.VersionError as error:
    print("refused", error, flush=True)
"""


@pytest.fixture
def elsewhere():
    """Starts a Python program in a pid namespace of its own; skips where that is not permitted."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("a pid namespace of one's own is not permitted here")
    started = []

    def start(program: str, *args: str, own_proc: bool) -> subprocess.Popen:
        command = ["unshare", "--pid", "--fork", "--kill-child", *(["--mount-proc"] if own_proc else [])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, HERE])}
        process = subprocess.Popen(
            [*command, sys.executable, "-c", program, *args], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def make(capacity: int = 64, **kwargs) -> TensorDictReplayBuffer:
    lock = kwargs.pop("lock", None)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, lock=lock), shared=True, **kwargs)
    buffer.extend(pairs(0, 8))
    return buffer


def test_the_mutex_refuses_another_pid_namespace_and_names_flock(home, elsewhere):  # noqa: F811
    buffer = make(lock="pthread")
    process = elsewhere(ATTACH, buffer.path, own_proc=True)
    said = process.stdout.readline()
    assert said.startswith("refused") and 'lock="flock"' in said and buffer.path in said
    assert buffer.stats()["live_members"] == 1


@pytest.mark.parametrize("own_proc", [True, False])
def test_flock_works_across_pid_namespaces(home, elsewhere, own_proc):  # noqa: F811
    buffer = make(lock="flock")
    process = elsewhere(ATTACH, buffer.path, own_proc=own_proc)
    assert process.stdout.readline() == "live 2\n"
    assert buffer.stats()["live_members"] == 2  # its pid is another one here, and says nothing
    buffer.extend(pairs(24, 32))
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done 0\n"
    process.wait(30)
    assert buffer[:].numel() == 32 and not torn(buffer[:]) and buffer.stats()["live_members"] == 1


# -- headers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, value, text",
    [
        (table.H_VERSION, table.FORMAT_VERSION + 1, f"format version {table.FORMAT_VERSION + 1}"),
        (table.H_MAGIC, 7, "not a replay buffer"),
        (table.H_BOOT_ID, 7, "earlier boot"),
        (table.H_CAPACITY, 63, "does not fit its config"),
    ],
)
def test_a_foreign_header_is_refused(home, word, value, text):  # noqa: F811
    from shmreplay.shm.segment import _attached

    buffer = make()
    buffer.storage.segment.words[word] = value
    del _attached[buffer.path]  # as another process would see it
    with pytest.raises(VersionError, match=text):
        attach(buffer.path)


def test_a_path_without_a_buffer(home):  # noqa: F811
    with pytest.raises(FileNotFoundError, match="no replay buffer at"):
        attach(os.path.join(home, "nothing"))


# -- full tables ---------------------------------------------------------------------------------------------------


def test_a_member_table_that_is_full(home):  # noqa: F811
    from shmreplay.shm.segment import _attached

    buffer = make()
    fds = []
    for row in range(1, table.N_MEMBERS):
        fds.append(os.open(os.path.join(buffer.path, "members"), os.O_RDWR))
        fcntl.fcntl(fds[-1], _F_OFD_SETLK, _flock(fcntl.F_WRLCK, row, 1))
    del _attached[buffer.path]
    before = whole(buffer)
    with pytest.raises(MembersFullError, match=f"{table.N_MEMBERS} processes are attached"):
        attach(buffer.path)
    assert whole(buffer) == before
    os.close(fds.pop())
    assert attach(buffer.path).stats()["live_members"] == 2
    for fd in fds:
        os.close(fd)


def test_a_buffer_that_is_being_freed_is_not_full(home):  # noqa: F811
    from shmreplay.shm.segment import _attached

    buffer = make()
    path = buffer.path
    buffer.storage.segment.members.forget()
    fd = os.open(os.path.join(path, "members"), os.O_RDWR)
    fcntl.fcntl(fd, _F_OFD_SETLK, _flock(fcntl.F_WRLCK, 0, table.N_MEMBERS))
    _attached.pop(path, None)
    with pytest.raises(FileNotFoundError, match="being freed"):
        attach(path)
    os.close(fd)


def test_more_buffers_on_one_storage_than_there_are_ledgers(home):  # noqa: F811
    buffer = make()
    others = [ReplayBuffer(storage=buffer.storage) for _ in range(table.N_LEDGERS - 1)]
    before = whole(buffer)
    with pytest.raises(MembersFullError, match=f"{table.N_LEDGERS} buffers"):
        ReplayBuffer(storage=buffer.storage)
    assert whole(buffer) == before and len(others[-1]) == 8
    assert not torn(others[-1].sample(4))


def test_more_writes_in_flight_than_the_journal_holds(home):  # noqa: F811
    buffer = make(4096)
    ring, open_writes = buffer.storage.ring, []
    for _ in range(table.N_ENTRIES):
        open_writes.append(Write(1, None, buffer.storage.claim_rows, buffer.writer._writing))
        ring.reserve(open_writes[-1])
    before = whole(buffer)
    with pytest.raises(MembersFullError, match=f"{table.N_ENTRIES} writes are in flight"):
        buffer.extend(pairs(8, 9))
    assert whole(buffer) == before
    for write in reversed(open_writes):
        ring.abandon(write)
    buffer.extend(pairs(8, 16))
    assert buffer[:]["x"].tolist() == list(range(16))
    buffer.storage.state.check_valid()


def test_more_waiting_calls_than_there_are_tickets(home):  # noqa: F811
    buffer = make(samples_per_insert=1.0)
    segment, ledger = buffer.storage.segment, buffer._ledger
    places = [(place, 10**6 + place) for place in range(table.N_TICKETS)]

    def fill(held, _):
        for place, ticket in places:
            ledger.samplers.enter(held, place, ticket, (segment.row, segment.inc), 10**6)

    buffer.storage.ring.set_words(fill, ledger.offset)
    records = buffer[:]["x"].tolist()
    with pytest.raises(MembersFullError, match=f"{table.N_TICKETS} calls wait"):
        buffer.sample(4, wait=True, timeout=30)
    assert buffer.stats()["waiting"] == table.N_TICKETS and buffer[:]["x"].tolist() == records

    def clear(held, _):
        for place, ticket in places:
            ledger.samplers.leave(held, place, ticket)

    buffer.storage.ring.set_words(clear, ledger.offset)
    assert not torn(buffer.sample(4, wait=True, timeout=30))


def test_a_folder_of_another_user(home, monkeypatch):  # noqa: F811
    buffer = make()
    program = "import os, shmreplay, sys; os.setuid(65534); shmreplay.attach(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, buffer.path], env=os.environ | {"PYTHONPATH": ROOT},
                          capture_output=True, text=True)  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip("changing the user needs root")
    assert "PermissionError" in done.stderr and buffer.path.split("/")[3] in done.stderr, done.stderr
