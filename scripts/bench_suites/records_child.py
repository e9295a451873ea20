"""The contestants of the suite `records`, in their own interpreters."""

from __future__ import annotations

import functools

from bench_suites import adapters
from bench_suites.many_processes import Workers
from bench_suites.timing import time_calls


def torch_api(**arguments) -> dict:
    return _operations(adapters.TorchApiAdapter(**arguments))


def cpprb(**arguments) -> dict:
    return _operations(adapters.CpprbAdapter(**arguments))


def bare_fields(**arguments) -> dict:
    return _operations(adapters.BareFieldsAdapter(**arguments))


def bare_packed(**arguments) -> dict:
    return _operations(adapters.BarePackedAdapter(**arguments))


def bare_lock() -> dict:
    return {"lock + unlock": functools.partial(time_calls, adapters.BareLock().lock_unlock)}


def _operations(adapter: adapters.Adapter) -> dict:
    adapter.fill()
    operations = {}
    for name in adapter.workload.operations:
        call = operation_call(adapter, name)
        if call is not None:
            operations[name] = functools.partial(time_calls, call)
    if adapter.start_method is not None and adapter.workload.many_processes:
        operations["many processes"] = Workers(adapter).measure
    return operations


def operation_call(adapter: adapters.Adapter, name: str):
    """Turn ``"sample 256"`` into a call of ``adapter.sample(256)``; None if the adapter lacks it."""
    word, _, count = name.partition(" ")
    method = getattr(adapter, word, None)
    if method is None:
        return None
    return functools.partial(method, int(count)) if count else method
