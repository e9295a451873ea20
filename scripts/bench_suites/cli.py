"""Options, and the order in which a run does its parts."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_suites import report
from bench_suites.model import Config, Series
from bench_suites.peers import find_hosts
from bench_suites.pins import PINS
from bench_suites.registry import load_suite, suite_names
from bench_suites.workloads import WORKLOADS

LEGEND = (
    "median: over rounds, of each round's median; p95: of all single values. Ratios are medians over rounds of ratios\n"
    "within a round. peer/ours (ours/peer for rates): how many times ours is better; ours/bound: times from the bound."
)
FAILED_CHECK, FAILED_RUN, INTERRUPTED = 1, 2, 130


def parse(arguments: Sequence[str]) -> Config:
    """Turn the command line into a Config; ``--check`` adds the peers that its ratios need."""
    options = _parser().parse_args(arguments)
    peers = list(dict.fromkeys([*options.peers, *(peer for peer, _ in options.peer_python)]))
    if options.check:
        needed = (check.peer for name in options.suite for check in load_suite(name).CHECKS)
        peers += [peer for peer in dict.fromkeys(needed) if peer and peer not in peers]
    return Config(
        suites=tuple(options.suite),
        peers=tuple(peers),
        peer_pythons=dict(options.peer_python),
        workloads=tuple(options.workloads),
        repeats=options.repeats or (2 if options.quick else 5),
        quick=options.quick,
        check=options.check,
        json_path=options.json,
    )


def _parser() -> argparse.ArgumentParser:
    described = "\n".join(f"  {name}: {load_suite(name).DESCRIPTION}" for name in suite_names())
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures shmreplay beside its peers and the machine's bound, in turns.\n\nsuites:\n" + described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    suites = suite_names()
    parser.add_argument("--suite", type=_names(suites), default=suites, metavar="S1,S2", help="default: all")
    parser.add_argument("--peers", type=_names(PINS), default=[], metavar="P1,P2", help=f"of {', '.join(PINS)}")
    parser.add_argument(
        "--peer-python",
        type=_peer_python,
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="measure this peer with this interpreter, and install nothing",
    )
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS), metavar="W1,W2")
    parser.add_argument("--repeats", type=_positive, help="rounds (default 5, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="smaller buffers and shorter rounds")
    parser.add_argument("--check", action="store_true", help="exit 1 unless the ratios that must hold are met")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write all raw numbers")
    return parser


def _names(known):
    def parse_names(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return list(dict.fromkeys(names))

    return parse_names


def _peer_python(text: str) -> tuple[str, str]:
    peer, equals, path = text.partition("=")
    if not equals or not path or peer not in PINS:
        raise argparse.ArgumentTypeError(f"{text!r} is not PEER=PATH with a peer of {', '.join(PINS)}")
    return peer, path


def _writable(text: str) -> Path:
    path = Path(text)
    if not os.access(path.parent, os.W_OK):  # said now, not after minutes of measuring
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: no folder {str(path.parent)!r} to write to")
    return path


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    config = parse(sys.argv[1:] if arguments is None else arguments)
    # A terminated run must leave through the `with` blocks, which end the children.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="shmreplay-bench-") as folder:
            return run(dataclasses.replace(config, scratch_dir=Path(folder)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def run(config: Config) -> int:
    """Measure every suite, print the report, and return the exit status."""
    problems: list[str] = []
    described = report.environment()
    print(report.environment_line(described), flush=True)
    hosts = find_hosts(config, problems)
    series: list[Series] = []
    verdicts: list[dict] = []
    for name in config.suites:
        suite = load_suite(name)
        measured = suite.measure(config, hosts, problems)
        series += measured
        verdicts += report.judge(suite.CHECKS, measured, name) if config.check else []
        print(f"\nsuite {name}\n" + report.table(report.rows(measured)), flush=True)
    _print_end(hosts.versions, problems, verdicts)
    if config.json_path is not None:
        content = {"environment": described, "versions": hosts.versions, "rows": report.rows(series)}
        report.write_json(config.json_path, {**content, "checks": verdicts, "problems": problems}, series)
    if not all(verdict["holds"] for verdict in verdicts):
        return FAILED_CHECK
    return 0 if any(any(one.rounds) for one in series) else FAILED_RUN


def _print_end(versions: dict, problems: list[str], verdicts: list[dict]) -> None:
    print("\n" + LEGEND)
    for line in report.versions_lines(versions):
        print(line)
    for problem in problems:
        print(f"problem: {problem}")
    for line in report.verdict_lines(verdicts):
        print(line)
