"""The command line of `scripts/stress`."""

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile

from stress_campaign.workers import Round

ROUNDS = (
    Round("limited", 1024, 8, 16, samples_per_insert=1),
    Round("unlimited", 1024, 8, 32),
    Round("both ways", 1024, 8, 16, samples_per_insert=2, max_inserts_ahead=64),
    Round("tiny ring", 32, 8, 16),
)
_CHOICE_OF_LOCK = "SHMREPLAY_LOCK"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Turns the command line into options."""
    parser = argparse.ArgumentParser(prog="scripts/stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long, all rounds together (default: 60)")
    parser.add_argument("--kill", action="store_true", help="kill half of the workers with SIGKILL, again and again")
    parser.add_argument("--lock", choices=["pthread", "flock"], help="the lock (default: the library's)")
    parser.add_argument("--spin", action="store_true", help="a spinning Python thread beside each worker")
    parser.add_argument("--writers", type=int, default=4, help="writers, half of them victims (default: 4)")
    parser.add_argument("--samplers", type=int, default=4, help="samplers, half of them victims (default: 4)")
    parser.add_argument("--seed", type=int, help="of the moments of death (default: drawn, and printed)")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or min(options.writers, options.samplers) < 1:
        parser.error("needs a time above 0 and at least one writer and one sampler")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    return options


def main() -> int:
    """Runs the campaign; 0 if nothing was breached."""
    options = parse()
    if options.lock is not None:
        os.environ[_CHOICE_OF_LOCK] = options.lock
    # a folder of its own, so that what is left afterwards is this run's
    folder = tempfile.mkdtemp(prefix="shmreplay-stress-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    os.environ["SHMREPLAY_DIR"] = os.path.join(folder, "segments")
    os.mkdir(os.environ["SHMREPLAY_DIR"])
    from stress_campaign.campaign import Campaign
    from stress_campaign.report import print_report

    logging.getLogger("shmreplay").setLevel(logging.ERROR)  # it tells of each death
    try:
        findings = Campaign(options, folder).run(ROUNDS)
        return print_report(options, findings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
