"""Entry point, `python -m train_dqn.main`; see `scripts/train`.

Spawned children import this module too, before all else. So it imports nothing that takes time.
"""

import gc
import os
import signal
import sys

# One thread a process: the cores are for the processes. Read by torch when it is imported, and by every child.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


def _leave(number: int, frame: object) -> None:
    """Ends the process while it is still importing: nothing is shared yet, so there is nothing to clean."""
    os._exit(128 + number)


def main() -> int:
    """Runs the job and returns the exit status."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    from train_dqn import options

    chosen = options.parse(sys.argv[1:])
    from train_dqn import run

    status = run.main(chosen)
    gc.freeze()  # else the interpreter's last collection walks all of torch, for a second
    return status


if __name__ == "__main__":
    sys.exit(main())
if __name__ == "__mp_main__":
    from train_dqn import orphans  # noqa: F401
