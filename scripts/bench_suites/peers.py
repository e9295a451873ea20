"""Interpreters of the contestants: ours, and one virtual environment per peer, made on demand."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench_suites.model import BOUND, OURS, Config
from bench_suites.pins import OURS_DISTRIBUTIONS, PINS, Pin

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = CHECKOUT / "scripts"
CACHE_VARIABLE = "SHMREPLAY_BENCH_VENVS"
_READY = "ready.json"


class PeerUnavailableError(RuntimeError):
    """A peer's environment could not be made; the text says at which step."""


@dataclass
class Hosts:
    """Interpreter of each host that can run contestants, and the versions found there; who is missing is left out."""

    pythons: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def __contains__(self, host: str) -> bool:
        return host in self.pythons

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment variables of a child.

        The checkout is on the path of ours only: a peer must never import ours by accident.
        """
        paths = [str(SCRIPTS)] + ([str(CHECKOUT)] if host == OURS else [])
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def find_hosts(config: Config, problems: list[str]) -> Hosts:
    """Make the interpreters that the run needs; peers that cannot be installed become problems, not errors."""
    hosts = Hosts({OURS: sys.executable, BOUND: sys.executable})
    for peer in config.peers:
        try:
            hosts.pythons[peer] = peer_python(peer, config.peer_pythons.get(peer))
        except PeerUnavailableError as error:
            problems.append(f"peer {peer} is left out: {error}")
    return hosts


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or CHECKOUT / ".bench-venvs")


def peer_python(peer: str, given: str | None = None) -> str:
    """Return an interpreter that can import ``peer``; installs it into a folder of its own if none is given.

    Raises:
        PeerUnavailableError: the interpreter cannot import it, or an installation step failed.
    """
    pin = PINS[peer]
    if given is not None:
        _probe(given, pin)
        return given
    folder = cache_folder() / peer
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{peer}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs that start together must not install into one folder
        if not _is_ready(folder, pin):
            _install(folder, pin)
    return str(folder / "bin" / "python")


def _is_ready(folder: Path, pin: Pin) -> bool:
    try:
        return json.loads((folder / _READY).read_text()) == _fingerprint(pin)
    except (OSError, ValueError):
        return False


def _fingerprint(pin: Pin) -> list[list[str]]:
    return [list(step) for step in pin.pip_steps]


def _install(folder: Path, pin: Pin) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    print(f"installing {pin.module} into {folder}", file=sys.stderr, flush=True)
    _step([sys.executable, "-m", "venv", str(folder)])
    for step in pin.pip_steps:
        _step([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
    _probe(python, pin)
    (folder / _READY).write_text(json.dumps(_fingerprint(pin)))


def _probe(python: str, pin: Pin) -> None:
    _step([python, "-c", f"import {pin.module}"])


def _step(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailableError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise PeerUnavailableError(f"{' '.join(command)} exited {done.returncode}: {lines[-1]}")


def distributions(host: str) -> tuple[str, ...]:
    """Return the names of the packages whose versions the report shows for a host."""
    return PINS[host].distributions if host in PINS else OURS_DISTRIBUTIONS
