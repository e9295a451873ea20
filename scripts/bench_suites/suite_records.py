"""Suite `records`: writing and sampling, in one process and in several."""

from __future__ import annotations

import os

from bench_suites.crew import Crew
from bench_suites.model import BOUND, OURS, Check, Config, Contestant, Series
from bench_suites.peers import Hosts
from bench_suites.workloads import WORKLOADS, Workload

DESCRIPTION = "add, extend and sample, one process and several, beside bare tensors and a bare lock"

OURS_TENSORDICT, TORCHRL_TENSORDICT = "ours tensordict", "torchrl tensordict"
CHECKS = (
    Check("W1", "sample 256", TORCHRL_TENSORDICT, OURS_TENSORDICT, at_least=3.5, peer="torchrl"),
    Check("W1", "extend 32", TORCHRL_TENSORDICT, OURS_TENSORDICT, at_least=2.5, peer="torchrl"),
)
# Kind of buffer and of storage; the first is what the bound and cpprb are compared with.
_VARIANTS = {
    "tensordict": ("tensordict", "tensor"),
    "tensordict memmap": ("tensordict", "memmap"),
    "plain": ("plain", "tensor"),
}
_MODULES = {OURS: "shmreplay", "torchrl": "torchrl.data"}
_PROCESSES = ((1, 1), (2, 2))
_CHILD = "bench_suites.records_child"


def contestants(workload: Workload, capacity: int, scratch_dir: str) -> list[Contestant]:
    """Return all contestants of one workload, in the order of the table."""
    size = {"workload": workload.name, "capacity": capacity}
    found = []
    for variant, (kind, storage) in _VARIANTS.items():
        for host, module in _MODULES.items():
            arguments = {**size, "module": module, "kind": kind, "storage": storage, "scratch_dir": scratch_dir}
            against = None if host == OURS else f"ours {variant}"
            found.append(Contestant(f"{host} {variant}", host, f"{_CHILD}:torch_api", arguments, against))
    for name, many in (("cpprb", False), ("cpprb mp", True)):
        found.append(Contestant(name, "cpprb", f"{_CHILD}:cpprb", {**size, "many": many}, OURS_TENSORDICT))
    found.append(Contestant("bare fields", BOUND, f"{_CHILD}:bare_fields", size, OURS_TENSORDICT))
    if workload.name == "W1":
        found.append(Contestant("bare packed rows", BOUND, f"{_CHILD}:bare_packed", size, OURS_TENSORDICT))
        found.append(Contestant("bare robust mutex", BOUND, f"{_CHILD}:bare_lock"))
    return found


def measure(config: Config, hosts: Hosts, problems: list[str]) -> list[Series]:
    series: list[Series] = []
    for name in config.workloads:
        series += _measure_workload(WORKLOADS[name], config, hosts, problems)
    return series


def _measure_workload(workload: Workload, config: Config, hosts: Hosts, problems: list[str]) -> list[Series]:
    wanted = contestants(workload, 0, str(config.scratch_dir))
    capacity = _capacity(workload, config.quick, sum(one.host in hosts for one in wanted), problems)
    wanted = contestants(workload, capacity, str(config.scratch_dir))
    operations = [*workload.operations, *(["lock + unlock"] if workload.name == "W1" else [])]
    found = {
        (operation, one.name): Series("records", workload.name, operation, one, "us")
        for operation in operations
        for one in wanted
    }
    seconds = 0.1 if config.quick else 0.3
    with Crew(f"records {workload.name}", wanted, hosts, problems) as crew:
        for turn in range(config.repeats):
            for operation in operations:
                _round(crew, operation, turn, seconds, found)
        many = _many_processes(crew, workload, wanted, config)
    return [one for one in found.values() if any(one.rounds)] + many


def _round(crew: Crew, operation: str, turn: int, seconds: float, found: dict) -> None:
    answers = {one.name: times for one, times in crew.ask_all(operation, turn, seconds=seconds)}
    for (measured, name), series in found.items():
        if measured == operation:
            series.rounds.append(answers.get(name))


def _many_processes(crew: Crew, workload: Workload, wanted: list[Contestant], config: Config) -> list[Series]:
    if not workload.many_processes:
        return []
    seconds, repeats = (1.0, min(config.repeats, 2)) if config.quick else (3.0, min(config.repeats, 3))
    found: dict[tuple, Series] = {}
    for processes in _PROCESSES:
        for role, word in (("write", "written"), ("sample", "sampled")):
            operation = f"{word} ({processes[0]}, {processes[1]})"
            for one in wanted:
                series = Series("records", workload.name, operation, one, "krec/s", higher_is_better=True)
                found[processes, role, one.name] = series
    for turn in range(repeats):
        for processes in _PROCESSES:
            arguments = {"writers": processes[0], "samplers": processes[1], "seconds": seconds}
            answers = {one.name: rates for one, rates in crew.ask_all("many processes", turn, 300.0, **arguments)}
            for (at, role, name), series in found.items():
                if at == processes:
                    series.rounds.append([answers[name][role]] if name in answers else None)
    return [series for series in found.values() if any(series.rounds)]


def _capacity(workload: Workload, quick: bool, buffers: int, problems: list[str]) -> int:
    """Return the capacity that lets all buffers be full at once within half of the free memory."""
    capacity = workload.quick_capacity if quick else workload.capacity
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = free // 2 // (workload.record_nbytes() * max(1, buffers))
    if room >= capacity:
        return capacity
    problems.append(f"{workload.name}: {room} records per buffer instead of {capacity}, to fit into memory")
    return max(room, workload.fill_count)
