"""Generations read the same in every process, however it was started, whoever changed them."""

import hashlib

import numpy as np
import pytest
import torch

import shmreplay
from stress_campaign.crew import Crew

STARTS = ("fork", "spawn", "forkserver")


class Twin:
    """What the generations must be, in private memory."""

    def __init__(self, capacity: int) -> None:
        self.generations = np.full(capacity, -1)
        self.cursor = 0

    def extend(self, n: int) -> None:
        capacity = len(self.generations)
        np.add.at(self.generations, np.arange(self.cursor, self.cursor + n) % capacity, 1)
        self.cursor = (self.cursor + n) % capacity

    def empty(self) -> None:
        self.generations[self.generations >= 0] += 1
        self.cursor = 0

    def load(self, saved: np.ndarray, cursor: int) -> None:
        live = self.generations
        loaded = np.where(live < 0, saved, np.maximum(saved, live + 1))
        self.generations = np.where(saved >= 0, loaded, np.where(live < 0, live, live + 1))
        self.cursor = cursor


def digest(generations: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(generations, np.int64).tobytes()).hexdigest()


def look(buffer, capacity: int) -> tuple[str, int, int]:
    """Digest of all generations, those out of range on either side included; `len` and `write_count`."""
    found = buffer.writer.generations_of(torch.arange(-2, capacity + 3)).numpy()
    assert (found[:2] == -1).all() and (found[-3:] == -1).all()
    return digest(found[2:-3]), len(buffer), buffer.write_count


def extend(buffer, n: int) -> None:
    for first in range(0, n, 1 << 18):
        buffer.extend(torch.arange(first, min(n, first + (1 << 18))))


def obey(buffer, capacity: int, connection) -> None:
    """Does what it is told, and tells what it sees."""
    while (order := connection.recv()) is not None:
        name, *arguments = order
        if name == "extend":
            extend(buffer, *arguments)
        elif name != "look":
            getattr(buffer, name)(*arguments)
        connection.send(look(buffer, capacity))


class Process:
    """One that obeys, by name of its start method."""

    def __init__(self, crew: Crew, buffer, capacity: int) -> None:
        self._connection, end = crew.context.Pipe()
        crew.start(obey, buffer, capacity, end)
        end.close()

    def order(self, *order) -> tuple[str, int, int]:
        self._connection.send(order)
        return self._connection.recv()

    def end(self) -> None:
        self._connection.send(None)


@pytest.mark.parametrize("capacity", [16, 1 << 20, (1 << 20) + 1])
def test_generations_are_equal_in_every_process(capacity):
    torch.set_num_threads(1)
    buffer = shmreplay.ReplayBuffer(
        storage=shmreplay.LazyTensorStorage(capacity),
        writer=shmreplay.RoundRobinWriter(track_generations=True),
        shared=True,
    )
    twin, some = Twin(capacity), capacity // 3 + 1
    extend(buffer, some)
    twin.extend(some)
    with Crew("fork") as first, Crew("spawn") as second, Crew("forkserver") as third:
        processes = {name: Process(crew, buffer, capacity) for name, crew in zip(STARTS, (first, second, third))}

        def check(step: str) -> None:
            expected = digest(twin.generations)
            seen = {name: process.order("look") for name, process in processes.items()}
            seen["parent"] = look(buffer, capacity)
            assert set(seen.values()) == {(expected, *seen["parent"][1:])}, (step, seen, expected)

        check("at the start")
        _change_everywhere(buffer, twin, processes, capacity, some, check)
        for process in processes.values():
            process.end()
        for crew in (first, second, third):
            crew.finish()
    buffer.storage.state.check_valid()


def _change_everywhere(buffer, twin: Twin, processes: dict, capacity: int, some: int, check) -> None:
    for name, process in processes.items():  # past the end of the ring in one of them
        process.order("extend", some)
        twin.extend(some)
        check(f"extended after {name}")
    saved, state, cursor = twin.generations.copy(), buffer.state_dict(), twin.cursor
    for name, process in processes.items():
        process.order("empty")
        twin.empty()
        check(f"emptied after {name}")
        extend(buffer, 5)
        twin.extend(5)
        check(f"extended by the parent after empty() after {name}")
    for name, process in processes.items():
        process.order("load_state_dict", state)
        twin.load(saved, cursor)
        check(f"loaded after {name}")
        process.order("extend", 3)
        twin.extend(3)
        check(f"extended after the load after {name}")
