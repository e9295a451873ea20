"""Suite `wakeup`: how long a blocked sampler in another process takes to come back."""

from __future__ import annotations

from bench_suites.crew import Crew
from bench_suites.model import BOUND, OURS, Check, Config, Contestant, Series
from bench_suites.peers import Hosts

DESCRIPTION = "from a write in one process to the return of a blocked sample in another, beside a bare futex"

FROM_NOTIFY, FROM_CALL = "wake from notify", "wake from extend call"
CHECKS = (Check("W1", FROM_NOTIFY, OURS, "bare futex", at_most=2.0),)
_BLOCK = 10
_FEWEST_BLOCKS = 20
_CHILD = "bench_suites.wakeup_child"


def contestants() -> list[Contestant]:
    return [
        Contestant("ours", OURS, f"{_CHILD}:torch_api", {"module": "shmreplay"}),
        Contestant("torchrl", "torchrl", f"{_CHILD}:torch_api", {"module": "torchrl.data"}, "ours"),
        Contestant("bare futex", BOUND, f"{_CHILD}:bare_futex", {}, "ours"),
    ]


def measure(config: Config, hosts: Hosts, problems: list[str]) -> list[Series]:
    """Measure in blocks of a few wake-ups per contestant in turns, at least 200 wake-ups each unless quick."""
    blocks = 4 * config.repeats if config.quick else max(_FEWEST_BLOCKS, 4 * config.repeats)
    wanted = contestants()
    found = {
        (operation, one.name): Series("wakeup", "W1", operation, one, "us")
        for operation in (FROM_NOTIFY, FROM_CALL, "unblocked sample")
        for one in wanted
    }
    with Crew("wakeup", wanted, hosts, problems) as crew:
        for turn in range(blocks):
            answers = {one.name: result for one, result in crew.ask_all("wake", turn, count=_BLOCK)}
            for (operation, name), series in found.items():
                series.rounds.append(answers.get(name, {}).get(operation))
    return [series for series in found.values() if any(series.rounds)]
