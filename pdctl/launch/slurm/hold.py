"""`python -m pdctl.launch.slurm.hold JOB`: hold a job's hosts for as long as the supervisor's job JOB lives."""

from __future__ import annotations

import sys
import time

from pdctl.launch.slurm import queue

POLL = 10.0  # seconds


def main(argv: list[str]) -> int:
    while queue.alive(argv[0]):
        time.sleep(POLL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
