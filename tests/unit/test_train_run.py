"""The main job as a whole, as a person runs it: small targets, real processes, real signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ENOUGH = 60  # seconds; only guards hangs


class Job:
    """A running training in a session of its own."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self.out = out
        self.log = out / "log"
        self.shared = out / "shared"
        self.shared.mkdir()
        path = os.pathsep.join([str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**os.environ, "PYTHONPATH": path, "SHMREPLAY_DIR": str(self.shared)}
        command = [sys.executable, "-u", "-m", "train_dqn.main", "--out", str(out), *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=self.environment,
        )

    def text(self) -> str:
        return self.log.read_text()

    def finish(self) -> int:
        return self.process.wait(ENOUGH)

    def await_line(self, pattern: str) -> None:
        deadline = time.monotonic() + ENOUGH
        while not re.search(pattern, self.text()):
            assert time.monotonic() < deadline and self.process.poll() is None, self.text()
            time.sleep(0.02)

    def living(self) -> list[int]:
        """Returns the processes of this session that run; a dead one that nobody has reaped yet does not."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, _, _, session = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state not in "ZX":
                found.append(int(entry))
        return found

    def seconds_until_gone(self) -> float:
        began = time.monotonic()
        while self.living() and time.monotonic() < began + ENOUGH:
            time.sleep(0.02)
        return time.monotonic() - began

    def buffers(self) -> list[str]:
        """Returns the folders of buffers that were not freed."""
        return [str(path.parent) for path in self.shared.rglob("records")]

    def close(self) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(*arguments: str) -> Job:
        jobs.append(Job(tmp_path, *arguments))
        return jobs[-1]

    yield start
    for started in jobs:
        started.close()


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_reaching_the_target_is_success(job, start):
    run = job("--start", start, "--target", "15", "--collectors", "2")
    assert run.finish() == 0, run.text()
    assert "success" in run.text()
    assert (run.out / "train.png").exists()
    assert run.buffers() == []


def test_missing_the_target_fails_and_says_why(job):
    run = job("--steps", "6000", "--target", "500", "--collectors", "2")
    assert run.finish() == 1
    assert re.search(r"train: failed: the mean return .* after 6,000 steps, not 500", run.text()), run.text()


def test_killed_collectors_are_replaced_and_cost_nothing(job):
    run = job("--kill-every", "1", "--time-limit", "8", "--target", "501")
    assert run.finish() == 1
    text = run.text()
    assert int(re.search(r"(\d+) killed", text)[1]) >= 4
    assert re.findall("train: failed.*", text) == re.findall("train: failed: the mean return.*", text), text
    for name in ("torn records", "lost records", "doubled records", "over-issued samples"):
        assert re.search(rf"{name} +0 ", text), text


def test_a_collector_that_dies_by_itself_is_a_failure(job):
    run = job("--start", "fork", "--target", "501")
    run.await_line(r"env [1-9]")
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    assert run.finish() == 1
    assert re.search(r"train: failed: collector \d ended with status -9", run.text()), run.text()


@pytest.mark.parametrize(
    ("start", "number", "to_all"),
    [
        ("fork", signal.SIGINT, True),
        ("spawn", signal.SIGINT, True),
        ("forkserver", signal.SIGINT, True),
        ("spawn", signal.SIGINT, False),
        ("fork", signal.SIGTERM, False),
    ],
)
def test_an_interrupt_ends_everything_in_time_and_quietly(job, start, number, to_all):
    run = job("--start", start, "--target", "501")
    run.await_line(r"\ds  env")
    time.sleep(0.5)  # anywhere between here and well under way
    (os.killpg if to_all else os.kill)(run.process.pid, number)
    began = time.monotonic()
    assert run.finish() == 128 + number, run.text()
    assert run.seconds_until_gone() + time.monotonic() - began < 4  # 2 on a machine with nothing else to do
    assert "Traceback" not in run.text() and run.text().endswith("train: interrupted\n")
    assert run.buffers() == []


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_nobody_outlives_a_killed_supervisor(job, start):
    run = job("--start", start, "--target", "501")
    run.await_line(r"\ds  env")
    time.sleep(0.5)
    run.process.kill()
    assert run.seconds_until_gone() < 3
    assert "Traceback" not in run.text()
    subprocess.run([sys.executable, "-m", "shmreplay", "gc"], env=run.environment, check=True, timeout=ENOUGH)
    assert run.buffers() == []
