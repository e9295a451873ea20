"""The benchmark behind ``scripts/bench``.

A suite is one file here, ``suite_<name>.py``; see :mod:`bench_suites.registry` for what it defines. The driver
(``cli``, ``crew``, ``report``) needs the standard library only; what runs in a contestant's interpreter (``child``,
``adapters``, ...) imports numpy, torch or the peer inside functions, because no interpreter has all of them.
"""
