"""What a run prints, and whether it passed."""

import argparse

import numpy as np

from stress_campaign.calls import KIND, QUEUED, STARTED, WALL, held_up, worst_first
from stress_campaign.campaign import Finding
from stress_campaign.holds import COUNT, LONGEST, P50, P99
from stress_campaign.workers import KINDS

LONGEST_BLOCK = 0.5  # seconds that anything but the lack of a core may hold up a call of a survivor
_SHOWN = 5


def print_report(options: argparse.Namespace, findings: list[Finding]) -> int:
    """Prints the table; returns the exit status: 0 if nothing was breached."""
    names = ["round", "seconds", "calls", "rows", "kills", "recovered", "buried", "longest block", "torn", "lost", "doubled"]
    rows = [[*names, "over-issued", "leaked"]]
    for finding in findings:
        rows.append([finding.round_.name, f"{finding.seconds:.1f}", *_figures(finding)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(widths[0]) if at == 0 else cell.rjust(widths[at]) for at, cell in enumerate(row)))
    for finding in findings:
        _print_details(finding)
    breaches = sum(_breaches(finding) for finding in findings)
    print(f"seed {options.seed}, {findings[-1].lock}: " + ("nothing breached" if not breaches else f"{breaches} BREACHES"))
    return 1 if breaches else 0


def _figures(finding: Finding) -> list[str]:
    account = finding.account
    counts = [finding.calls, finding.rows, finding.kills, finding.stats["recovered"], finding.stats["dead_members"]]
    faults = [finding.torn, account.lost, account.doubled, finding.over_issued, account.leaked]
    return [*(f"{count:,}" for count in counts), f"{held_up(finding.worst).max() / 1e6:.0f} ms", *(f"{fault:,}" for fault in faults)]


def _breaches(finding: Finding) -> int:
    account = finding.account
    blocked = int(np.count_nonzero(held_up(finding.worst) > LONGEST_BLOCK * 1e9))
    faults = finding.torn + account.lost + account.doubled + finding.over_issued + account.leaked
    return faults + blocked + len(finding.problems)


def _print_details(finding: Finding) -> None:
    account = finding.account
    print(
        f"{finding.round_.name}: {account.owed:,} of {account.kept:,} records at rest were acknowledged in place "
        f"({account.ambiguous:,} acknowledged too late to tell), {account.unacknowledged} written unacknowledged, "
        f"{account.holes} slots left empty by the dead, {finding.looks:,} looks, "
        f"{finding.proven} of them that prove an over-issue together with the next"
    )
    for row in worst_first(finding.worst)[:_SHOWN]:
        print(
            f"  {KINDS[row[KIND]]} of {row[WALL] / 1e6:.0f} ms at {(row[STARTED] - finding.began_ns) / 1e9:.3f} s, "
            f"{row[QUEUED] / 1e6:.0f} ms of it ready but without a core"
        )
    holds = finding.holds[finding.holds[:, COUNT] > 0]
    if len(holds):
        print(
            f"  lock held: median {holds[:, P50].max() / 1e3:.0f} us, p99 {holds[:, P99].max() / 1e3:.0f} us, "
            f"longest {holds[:, LONGEST].max() / 1e3:.0f} us (of the worst of {len(holds)} workers)"
        )
    for text in [*account.remarks, *finding.problems]:
        print(f"  {text}")
