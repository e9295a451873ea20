"""The campaign itself, for a few seconds, as a person runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("options", [(), ("--spin",)], ids=["", "spin"])
def test_deaths_breach_nothing(options, full):
    path = os.pathsep.join([str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    seconds = "60" if full else "6"
    run = subprocess.run(
        [sys.executable, "-m", "stress_campaign.main", "--seconds", seconds, "--kill", "--seed", "1", *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    print("\n" + run.stdout + run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing breached" in run.stdout
