"""The table is complete: every operation code and every named point of the source occurs in it."""

import os
import re

import points_table

import shmreplay
from shmreplay.state import ops

_POINT = re.compile(r"""point\(\s*["']shmreplay\.([a-z.]+)["']|audit\(\s*["']shmreplay\.([a-z.]+)["']""")


def _points_of_the_source() -> set[str]:
    names = set()
    for folder, _, files in os.walk(os.path.dirname(shmreplay.__file__)):
        for file in files:
            if file.endswith(".py"):
                with open(os.path.join(folder, file)) as source:
                    names |= {first or second for first, second in _POINT.findall(source.read())}
    return names


def test_every_operation_occurs():
    codes = {value for name, value in vars(ops).items() if name.startswith("OP_")}
    assert {row[3] for row in points_table.flat()} - {None} == codes


def test_every_point_occurs():
    here = {row[2] for row in points_table.flat()}
    assert here | set().union(*points_table.ELSEWHERE.values()) == _points_of_the_source()


def test_points_tested_elsewhere_are_tested_there():
    for file, names in points_table.ELSEWHERE.items():
        with open(os.path.join(os.path.dirname(__file__), file)) as source:
            text = source.read()
        assert [name for name in sorted(names) if f'"{name}"' not in text] == [], file
