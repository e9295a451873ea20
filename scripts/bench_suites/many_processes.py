"""Writers and samplers in processes of their own, on one buffer, for a fixed time. Runs in the contestants."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.connection import Connection

WRITE_COUNT, SAMPLE_COUNT = 32, 256
_START_TIMEOUT = 90.0
_LEAD = 0.05


class Workers:
    """Starts the processes when first needed and keeps them, so that imports are paid once."""

    def __init__(self, adapter) -> None:
        self._adapter = adapter
        self._context = multiprocessing.get_context(adapter.start_method)
        self._pipes: dict[str, list[Connection]] = {"write": [], "sample": []}

    def measure(self, writers: int, samplers: int, seconds: float) -> dict[str, float]:
        """Return thousand records per second, all writers together and all samplers together."""
        self._start("write", writers)
        self._start("sample", samplers)
        before = self._adapter.written_count()
        begin = time.monotonic() + _LEAD
        busy = {"write": self._pipes["write"][:writers], "sample": self._pipes["sample"][:samplers]}
        for pipes in busy.values():
            for pipe in pipes:
                pipe.send((begin, seconds))
        counts = {role: [_receive(pipe, seconds + 30.0) for pipe in pipes] for role, pipes in busy.items()}
        self._check_written(before, sum(count for count, _ in counts["write"]))
        return {role: sum(count / spent for count, spent in pairs) / 1_000 for role, pairs in counts.items()}

    def _start(self, role: str, needed: int) -> None:
        while len(self._pipes[role]) < needed:
            ours, theirs = self._context.Pipe()
            seed = 1 + len(self._pipes["write"]) + 100 * len(self._pipes["sample"])
            process = self._context.Process(target=work, args=(self._adapter, role, theirs, seed), daemon=True)
            process.start()
            theirs.close()
            _receive(ours, _START_TIMEOUT)
            self._pipes[role].append(ours)

    def _check_written(self, before: int | None, written: int) -> None:
        # A buffer that was copied instead of shared would be fast and meaningless.
        after = self._adapter.written_count()
        if before is not None and after - before != written:
            raise RuntimeError(f"the workers wrote {written} records, but the buffer counts {after - before}")


def _receive(pipe: Connection, timeout: float):
    if not pipe.poll(timeout):
        raise TimeoutError(f"a worker did not answer within {timeout:g} s")
    return pipe.recv()


def work(adapter, role: str, pipe: Connection, seed: int) -> None:
    """Write or sample whenever asked; report (records, seconds)."""
    _prepare(seed)
    count = WRITE_COUNT if role == "write" else SAMPLE_COUNT
    call = adapter.extend if role == "write" else adapter.sample
    if role == "sample":
        call(count)
    else:
        adapter.batch(count)
    pipe.send("ready")
    while True:
        try:
            begin, seconds = pipe.recv()
        except EOFError:
            return
        time.sleep(max(0.0, begin - time.monotonic()))
        pipe.send(_repeat(call, count, seconds))


def _repeat(call, count: int, seconds: float) -> tuple[int, float]:
    begun = time.monotonic()
    calls = 0
    while (spent := time.monotonic() - begun) < seconds:
        call(count)
        calls += 1
    return calls * count, spent


def _prepare(seed: int) -> None:
    random.seed(seed)
    try:
        import torch
    except ImportError:
        import numpy as np

        np.random.seed(seed)
        return
    torch.set_num_threads(1)
    torch.manual_seed(seed)
