"""The process of one contestant: ``python -m bench_suites.child module:function '{...}'``.

Requests come as JSON lines on stdin, answers go as JSON lines to what was stdout at the start; the end of stdin ends
the process, so that no child outlives a driver that was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from importlib import metadata


def main() -> int:
    answers = _claim_stdout()
    target, arguments = sys.argv[1], json.loads(sys.argv[2])
    try:
        _one_torch_thread()
        operations = _build(target, arguments)
    except Exception:
        _answer(answers, {"error": traceback.format_exc()})
        return 1
    _answer(answers, {"result": {"operations": sorted(operations), "versions": _versions(sys.argv[3:])}})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = operations[request["operation"]](**request["arguments"])
        except Exception:
            _answer(answers, {"error": traceback.format_exc()})
        else:
            _answer(answers, {"result": result})
    return 0


def _claim_stdout():
    # Libraries print; their text must not land between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _answer(answers, message: dict) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _one_torch_thread() -> None:
    try:
        import torch
    except ImportError:  # cpprb's environment has no torch
        return
    torch.set_num_threads(1)


def _build(target: str, arguments: dict) -> dict:
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)(**arguments)


def _versions(names: list[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


if __name__ == "__main__":
    sys.exit(main())
