"""What every task of a step runs: `python -m pdctl.launch.slurm.rank STEP.json` starts the command for its node.

Like the keeper of a local run, it is responsible for everything the command starts. It leaves two records in the shared
directory: that it started, and how it ended. srun's own exit code tells neither (it may be 0 for a lost node).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from pdctl import user_files
from pdctl.launch import keeper


def main(argv: list[str]) -> NoReturn:
    file = Path(argv[0])
    step = json.loads(file.read_bytes())
    node = os.environ["SLURMD_NODENAME"]
    mine = next((rank for rank in step["ranks"] if rank["node"] == node), None)
    if mine is None:
        sys.exit(f"{file} has no command for node {node}")
    os.environ.update(dict(mine["env"]))
    os.environ.update({"PYTHONUNBUFFERED": "1", "PDCTL_RUN": step["run"]})
    log = os.open(mine["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    record = Path(mine["record"])

    def ended(status: int) -> None:
        code, number = (0, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), 0)
        write(record.with_name(f"{record.name}.exit"), {"code": code, "signal": number, "at": time.time()})

    write(
        record.with_name(f"{record.name}.start"),
        {"node": node, "pid": os.getpid(), "step": os.environ["SLURM_STEP_ID"], "at": time.time()},
    )
    # Slurm signals a task's process group; the command has its own session and gets the signal only from this process.
    keeper.keep(mine["argv"], ended=ended, apart=True)


def write(path: Path, value: dict[str, object]) -> None:
    user_files.write_whole(path, json.dumps(value))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1:])
