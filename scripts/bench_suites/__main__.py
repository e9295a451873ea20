"""Entry point of ``python -m bench_suites``."""

import sys

from bench_suites.cli import main

sys.exit(main())
