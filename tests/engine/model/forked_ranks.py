"""Ranks as processes of their own, forked from one that has imported torch once for all of them.

`python -m tests.engine.model.forked_ranks MODULE RANKS ARGUMENT…` calls MODULE.main(rank, *arguments) in each rank.
"""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import wait

DEADLINE = 120.0  # seconds from the import of torch to the end of the last rank


def run(module: str, ranks: int, *arguments: str) -> None:
    """Raise AssertionError with what the ranks wrote on stderr if one of them fails or does not end in time."""
    command = [sys.executable, "-m", __name__, module, str(ranks), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    assert ran.returncode == 0, ran.stderr


def main() -> None:
    name, count, *arguments = sys.argv[1:]
    module = importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=module.main, args=(rank, *arguments), daemon=True) for rank in range(int(count))]
    for rank in ranks:
        rank.start()
    deadline, running = time.monotonic() + DEADLINE, {rank.sentinel: rank for rank in ranks}
    while running:
        ended = wait(running, deadline - time.monotonic())
        if not ended:
            sys.exit(f"not ended within {DEADLINE} s: {', '.join(rank.name for rank in running.values())}")
        for sentinel in ended:
            rank = running.pop(sentinel)
            rank.join()
            if rank.exitcode:
                sys.exit(f"{rank.name} ended with {rank.exitcode}")  # the others would wait for it


if __name__ == "__main__":
    main()
