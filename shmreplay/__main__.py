"""``python -m shmreplay gc``: free the shared memory that dead processes left."""

import argparse

from .shm.folders import folder
from .shm.freeing import sweep


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shmreplay", description=__doc__)
    parser.add_argument("command", choices=["gc"], help="gc: free what dead processes left")
    parser.parse_args()
    print(f"{sweep()} buffers of dead processes freed in {folder()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
