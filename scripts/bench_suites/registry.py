"""Finds the suites: every ``suite_<name>.py`` in this folder.

Such a module defines

- ``DESCRIPTION``: one line for ``--help``;
- ``CHECKS``: a tuple of :class:`~bench_suites.model.Check`, what ``--check`` holds it to;
- ``measure(config, hosts, problems) -> list[Series]``: starts its contestants through
  :class:`~bench_suites.crew.Crew`, measures them in turns, and returns the series in the order of the table.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

_PREFIX = "suite_"


def suite_names() -> list[str]:
    files = Path(__file__).parent.glob(f"{_PREFIX}*.py")
    return sorted(file.stem.removeprefix(_PREFIX) for file in files)


def load_suite(name: str) -> ModuleType:
    return importlib.import_module(f"bench_suites.{_PREFIX}{name}")
