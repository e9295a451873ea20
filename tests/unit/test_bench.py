"""The benchmark's own arithmetic and manners; nothing here measures speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from bench_suites import cli, crew, peers, pins, registry, report, suite_records, suite_wakeup, timing  # noqa: E402
from bench_suites.adapters import Adapter, BareLock  # noqa: E402
from bench_suites.model import BOUND, OURS, Check, Config, Contestant, Series  # noqa: E402
from bench_suites.peers import Hosts, PeerUnavailableError  # noqa: E402
from bench_suites.records_child import operation_call  # noqa: E402
from bench_suites.workloads import WORKLOADS  # noqa: E402

OUR_CONTESTANT = Contestant("ours tensordict", OURS, "nowhere:never")
PEER = Contestant("torchrl tensordict", "torchrl", "nowhere:never", {}, "ours tensordict")
BARE = Contestant("bare fields", BOUND, "nowhere:never", {}, "ours tensordict")


def series(contestant: Contestant, rounds: list, *, operation: str = "sample 256", rate: bool = False) -> Series:
    return Series("records", "W1", operation, contestant, "us", higher_is_better=rate, rounds=rounds)


# --- options ---------------------------------------------------------------------------------------------------------


def test_defaults_measure_every_suite_and_no_peer():
    config = cli.parse([])
    assert {"records", "wakeup"} <= set(config.suites)
    assert config.peers == ()
    assert config.workloads == ("W1", "W2")
    assert (config.repeats, config.quick, config.check, config.json_path) == (5, False, False, None)


def test_options_are_read():
    config = cli.parse(
        "--suite wakeup --peers torchrl,cpprb --peer-python torchrl=/a=b/python --workloads W2"
        " --repeats 7 --quick --json out.json".split()
    )
    assert config.suites == ("wakeup",)
    assert config.peers == ("torchrl", "cpprb")
    assert config.peer_pythons == {"torchrl": "/a=b/python"}
    assert config.workloads == ("W2",)
    assert (config.repeats, config.quick, config.json_path) == (7, True, Path("out.json"))


def test_a_given_interpreter_asks_for_its_peer():
    assert cli.parse(["--peer-python", "cpprb=/bin/python"]).peers == ("cpprb",)


def test_quick_takes_fewer_rounds():
    assert cli.parse(["--quick"]).repeats == 2


def test_check_adds_the_peers_that_its_ratios_need():
    assert cli.parse(["--check", "--suite", "records"]).peers == ("torchrl",)
    assert cli.parse(["--check", "--suite", "wakeup"]).peers == ()
    assert cli.parse(["--check", "--peers", "cpprb,torchrl", "--suite", "records"]).peers == ("cpprb", "torchrl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "speed"], "'speed' is not one of records"),
        (["--peers", "rlpyt"], "'rlpyt' is not one of torchrl, cpprb"),
        (["--workloads", "W1,W9"], "'W9'"),
        (["--repeats", "0"], "at least 1"),
        (["--peer-python", "torchrl"], "PEER=PATH"),
        (["--peer-python", "rlpyt=/bin/python"], "PEER=PATH"),
        (["--json", "no/such/folder/out.json"], "no folder"),
    ],
)
def test_bad_options_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as refused:
        cli.parse(arguments)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_every_suite_keeps_the_registrys_contract():
    assert {"records", "wakeup"} <= set(registry.suite_names())
    for name in registry.suite_names():
        suite = registry.load_suite(name)
        assert suite.DESCRIPTION
        assert callable(suite.measure)
        assert all(isinstance(check, Check) for check in suite.CHECKS)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_percentile_interpolates():
    assert timing.percentile([4.0, 1.0, 3.0, 2.0, 5.0], 0.5) == 3.0
    assert timing.percentile(list(range(101)), 0.95) == 95
    assert timing.percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert timing.percentile([7.0], 0.95) == 7.0


def test_ratio_is_paired_by_round():
    # The machine halves its speed after the first round: each round still says 4.
    slow, fast = [[40.0], [80.0], [80.0]], [[10.0], [20.0], [20.0]]
    assert timing.paired_ratio(slow, fast) == 4.0
    # Medians of all rounds would say 80 / 10 here.
    assert timing.paired_ratio([None, [80.0], [80.0]], [[10.0], [20.0], None]) == 4.0
    assert timing.paired_ratio([[1.0], None], [None, [1.0]]) is None


def test_median_of_rounds_skips_rounds_that_failed():
    assert timing.median_of_rounds([[1.0, 2.0, 9.0], None, [4.0], [100.0]]) == 4.0


def test_time_calls_warms_up_and_stops():
    calls = []
    times = timing.time_calls(lambda: calls.append(None), seconds=60.0, most=10)
    assert len(times) == 10
    assert len(calls) == 10 + timing.WARM_CALLS
    assert all(time >= 0 for time in times)
    assert len(timing.time_calls(lambda: None, seconds=0.0)) == 1


def test_rows_of_calls_say_how_many_times_ours_is_better():
    lines = report.rows([
        series(OUR_CONTESTANT, [[10.0] * 20, [20.0] * 20]),
        series(PEER, [[40.0] * 20, [70.0] * 20]),
        series(BARE, [[5.0] * 20, [5.0] * 20]),
    ])
    ours, peer, bare = lines
    assert (ours["median"], ours["p95"], ours["ratio"], ours["ratio_name"]) == (15.0, 20.0, None, "")
    assert (peer["median"], peer["ratio"], peer["ratio_name"]) == (55.0, 3.75, "peer/ours")
    assert (bare["ratio"], bare["ratio_name"]) == (3.0, "ours/bound")


def test_rows_of_rates_turn_the_ratio_round():
    ours, peer, bare = report.rows([
        series(OUR_CONTESTANT, [[600.0]], rate=True),
        series(PEER, [[200.0]], rate=True),
        series(BARE, [[1800.0]], rate=True),
    ])
    assert (peer["ratio"], peer["ratio_name"]) == (3.0, "ours/peer")
    assert (bare["ratio"], bare["ratio_name"]) == (3.0, "bound/ours")
    assert ours["p95"] is None, "three rates have no 95th percentile"


def test_rows_without_ours_have_no_ratio():
    (only,) = report.rows([series(PEER, [[40.0]]), series(OUR_CONTESTANT, [None])])
    assert (only["contestant"], only["ratio"], only["ratio_name"]) == ("torchrl tensordict", None, "")


def test_table_shows_every_column():
    lines = report.rows([
        series(OUR_CONTESTANT, [[10.0] * 20]),
        series(PEER, [[1234.0] * 20]),
        series(PEER, [[0.5]], operation="add"),
    ])
    text = report.table(lines).splitlines()
    assert text[0].split() == list(report.COLUMNS)
    assert text[2].split() == ["W1", "sample", "256", "ours", "tensordict", "10", "10", "us"]
    assert text[3].split()[-5:] == ["1,234", "1,234", "us", "peer/ours", "123.40"]
    assert text[4] == ""
    assert text[5].split()[-3:] == ["0.5", "-", "us"]


def test_checks_hold_at_their_limit_and_fail_beyond_or_unmeasured():
    measured = [series(OUR_CONTESTANT, [[10.0]]), series(PEER, [[35.0]])]
    check = Check("W1", "sample 256", PEER.name, OUR_CONTESTANT.name, at_least=3.5)
    stricter = Check("W1", "sample 256", PEER.name, OUR_CONTESTANT.name, at_least=3.6)
    at_most = Check("W1", "sample 256", PEER.name, OUR_CONTESTANT.name, at_most=3.4)
    missing = Check("W1", "extend 32", PEER.name, OUR_CONTESTANT.name, at_least=2.5)
    verdicts = report.judge([check, stricter, at_most, missing], measured, "records")
    assert [verdict["holds"] for verdict in verdicts] == [True, False, False, False]
    assert [verdict["ratio"] for verdict in verdicts] == [3.5, 3.5, 3.5, None]
    lines = report.verdict_lines(verdicts)
    assert lines[0].startswith("ok   W1 sample 256: torchrl tensordict / ours tensordict >= 3.5: 3.5")
    assert lines[3].startswith("FAIL") and lines[3].endswith("not measured")


def test_the_ratios_that_must_hold():
    limits = {
        (check.workload, check.operation): (check.at_least, check.at_most)
        for check in (*suite_records.CHECKS, *suite_wakeup.CHECKS)
    }
    assert limits[("W1", "sample 256")] == (3.5, None)
    assert limits[("W1", "extend 32")] == (2.5, None)
    assert limits[("W1", suite_wakeup.FROM_NOTIFY)] == (None, 2.0)


def test_checks_name_contestants_that_exist():
    names = {one.name for one in suite_records.contestants(WORKLOADS["W1"], 10, "folder")}
    assert {name for check in suite_records.CHECKS for name in (check.over, check.under)} <= names
    names = {one.name for one in suite_wakeup.contestants()}
    assert {name for check in suite_wakeup.CHECKS for name in (check.over, check.under)} <= names


def test_everyone_is_compared_with_a_contestant_of_ours():
    for workload in WORKLOADS.values():
        found = suite_records.contestants(workload, 10, "folder")
        ours = {one.name for one in found if one.host == OURS}
        assert len(ours) == 3
        assert {one.against for one in found if one.against} <= ours


# --- environment -----------------------------------------------------------------------------------------------------


def test_cpu_model_is_found():
    assert report.cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz: fast\n") == "Some CPU @ 2 GHz: fast"
    assert report.cpu_model("") != ""


def test_environment_line_names_machine_and_versions():
    line = report.environment_line(report.environment())
    assert line.startswith("environment: cpu ")
    for word in ("cores ", "kernel ", f"python {sys.version.split()[0]}", "torch ", "numpy "):
        assert word in line


# --- workloads -------------------------------------------------------------------------------------------------------


def test_workloads_have_the_sizes_they_are_known_by():
    assert WORKLOADS["W1"].record_nbytes() == 165
    assert WORKLOADS["W2"].record_nbytes() == 2 * 4 * 84 * 84 + 8 + 4 + 1
    records = WORKLOADS["W1"].records(3)
    assert records["obs"].shape == (3, 17) and records["obs"].dtype == "float32"
    assert records["done"].shape == (3, 1) and records["done"].dtype == "bool"


class CountingAdapter(Adapter):
    def __init__(self) -> None:
        super().__init__("W1", capacity=25_000)
        self.written: list[int] = []

    def extend(self, count: int) -> None:
        assert len(self.batch(count)["obs"]) == count
        self.written.append(count)


def test_fill_writes_every_slot_once():
    adapter = CountingAdapter()
    adapter.fill()
    assert sum(adapter.written) == 25_000
    assert max(adapter.written) == WORKLOADS["W1"].fill_count


def test_operations_become_calls():
    adapter = CountingAdapter()
    operation_call(adapter, "extend 32")()
    assert adapter.written == [32]
    assert operation_call(adapter, "sample 256") is None
    assert adapter.batch(0)["obs"].shape == (17,)


def test_capacity_shrinks_with_the_memory(monkeypatch):
    problems: list[str] = []
    assert suite_records._capacity(WORKLOADS["W1"], True, 1, problems) == WORKLOADS["W1"].quick_capacity
    assert problems == []
    pages = 2 * 10 * 5_000 * WORKLOADS["W2"].record_nbytes()
    monkeypatch.setattr(suite_records.os, "sysconf", lambda name: pages if "PHYS" in name else 1)
    assert suite_records._capacity(WORKLOADS["W2"], False, 10, problems) == 5_000
    assert "5000 records per buffer instead of 20000" in problems[0]


# --- peers -----------------------------------------------------------------------------------------------------------


def test_an_interpreter_without_the_peer_is_reported():
    with pytest.raises(PeerUnavailableError, match="import no_such_module_here exited 1: ModuleNotFoundError"):
        peers._probe(sys.executable, pins.Pin((), "no_such_module_here", ()))


def fake_installer(monkeypatch, tmp_path: Path, refuse: str) -> list[list[str]]:
    """Let every installation step succeed, except those that mention ``refuse``."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        refused = any(refuse in word for word in command)
        return subprocess.CompletedProcess(command, int(refused), "", "collecting\nno matching distribution\n")

    monkeypatch.setattr(peers.subprocess, "run", run)
    monkeypatch.setenv(peers.CACHE_VARIABLE, str(tmp_path / "venvs"))
    return commands


def test_a_peer_that_cannot_be_installed_is_reported_and_the_others_stay(monkeypatch, tmp_path):
    commands = fake_installer(monkeypatch, tmp_path, refuse="torchrl-nightly")
    problems: list[str] = []
    hosts = peers.find_hosts(Config(suites=(), peers=("torchrl", "cpprb")), problems)
    assert set(hosts.pythons) == {OURS, BOUND, "cpprb"}
    (problem,) = problems
    assert problem.startswith("peer torchrl is left out: ")
    assert "torchrl-nightly==2026.10.27" in problem and problem.endswith("no matching distribution")
    assert not any("cloudpickle" in command for command in commands), "went on after the step that failed"


def test_a_peer_is_installed_once_and_again_when_its_pins_change(monkeypatch, tmp_path):
    commands = fake_installer(monkeypatch, tmp_path, refuse="nothing at all")
    python = peers.peer_python("cpprb")
    assert python == str(tmp_path / "venvs" / "cpprb" / "bin" / "python")
    assert [python, "-c", "import cpprb"] in commands
    commands.clear()
    assert peers.peer_python("cpprb") == python
    assert commands == []
    monkeypatch.setitem(peers.PINS, "cpprb", pins.Pin((("cpprb==99",),), "cpprb", ("cpprb",)))
    peers.peer_python("cpprb")
    assert any("cpprb==99" in command for command in commands)


def test_peers_cannot_import_ours():
    hosts = Hosts()
    assert str(peers.CHECKOUT) in hosts.environment(OURS)["PYTHONPATH"].split(":")
    assert hosts.environment("torchrl")["PYTHONPATH"].split(":") == [str(SCRIPTS)]


# --- children and whole runs -----------------------------------------------------------------------------------------


def test_a_contestant_that_fails_does_not_stop_the_others():
    problems: list[str] = []
    hosts = Hosts({OURS: sys.executable, BOUND: sys.executable})
    contestants = [
        Contestant("mutex", BOUND, "bench_suites.records_child:bare_lock"),
        Contestant("broken", OURS, "bench_suites.records_child:no_such_function"),
        Contestant("gone", OURS, "os:_exit", {"status": 7}),
        Contestant("peer", "torchrl", "bench_suites.records_child:bare_lock"),
    ]
    with crew.Crew("records W1", contestants, hosts, problems) as children:
        asked = list(children.ask_all("lock + unlock", 0, seconds=0.01))
        refused = list(children.ask_all("lock + unlock", 1, wrong=1))
        again = list(children.ask_all("lock + unlock", 2, seconds=0.01))
    ((contestant, times),) = asked
    assert contestant.name == "mutex"
    assert times and all(time > 0 for time in times)
    assert refused == [] and again == []
    assert problems[0].startswith("records W1, broken could not start: AttributeError")
    assert problems[1] == "records W1, gone could not start: ended: exit status 7"
    assert problems[2].startswith("records W1, mutex, lock + unlock: TypeError")
    assert "torch" in hosts.versions[BOUND]


def test_bare_lock_is_released():
    lock = BareLock()
    for _ in range(3):
        lock.lock_unlock()
    assert lock._libc.pthread_mutex_trylock(lock._mutex) == 0
    lock._libc.pthread_mutex_unlock(lock._mutex)  # a locked robust mutex in freed memory crashes the process later


def canned_suite(ours: float) -> SimpleNamespace:
    def measure(config, hosts, problems):
        problems.append("records W1, cpprb could not start: no wheel")
        return [series(OUR_CONTESTANT, [[ours] * 20]), series(PEER, [[40.0] * 20])]

    return SimpleNamespace(CHECKS=suite_records.CHECKS[:1], DESCRIPTION="canned", measure=measure)


@pytest.mark.parametrize(("ours", "status"), [(10.0, 0), (20.0, cli.FAILED_CHECK)])
def test_a_run_prints_judges_and_writes(ours, status, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "load_suite", lambda name: canned_suite(ours))
    monkeypatch.setattr(cli, "find_hosts", lambda config, problems: Hosts({OURS: sys.executable}))
    path = tmp_path / "raw.json"
    config = Config(suites=("records",), check=True, json_path=path)
    assert cli.run(config) == status
    out = capsys.readouterr().out
    assert out.startswith("environment: cpu ")
    assert f"peer/ours {40 / ours:.2f}" in out
    assert "problem: records W1, cpprb could not start: no wheel" in out
    assert ("FAIL W1 sample 256" in out) == (status != 0)
    content = json.loads(path.read_text())
    assert content["series"][0]["rounds"] == [[ours] * 20]
    assert content["series"][1]["contestant"]["name"] == "torchrl tensordict"
    assert content["rows"][1]["ratio"] == 40 / ours
    assert content["checks"][0]["holds"] == (status == 0)
    assert content["problems"] == ["records W1, cpprb could not start: no wheel"]
    assert [file.name for file in tmp_path.iterdir()] == ["raw.json"]


def test_a_run_that_measured_nothing_fails(monkeypatch):
    empty = SimpleNamespace(CHECKS=(), DESCRIPTION="", measure=lambda config, hosts, problems: [])
    monkeypatch.setattr(cli, "load_suite", lambda name: empty)
    monkeypatch.setattr(cli, "find_hosts", lambda config, problems: Hosts())
    assert cli.run(Config(suites=("records",))) == cli.FAILED_RUN
