"""`python -m pdctl.launch RUN_DIRECTORY LOCK_FD`: the supervisor of a detached run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pdctl.launch.run_directory import RunDir
from pdctl.launch.supervisor import Supervisor
from pdctl.launch.targets.local import LocalRuntime


def main(argv: list[str]) -> int:
    directory = RunDir(Path(argv[0]))
    os.set_inheritable(int(argv[1]), False)  # the supervisor alone holds the lock: its children must not inherit it
    run = directory.load()
    outcome = Supervisor(directory, run, LocalRuntime(run.name, os.environ), lambda event: None).run()
    return outcome.code or 128 + outcome.signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
