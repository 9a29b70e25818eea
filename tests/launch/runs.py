"""Runs as a record has them: opened, alive, or left by their supervisor."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from pdctl.launch import preflight, procfs, run_directory
from pdctl.launch.run_opening import Opened, open_run
from pdctl.launch.run_record import Run, State
from tests.launch.conftest import QUICK, deploy


def opened(root: Path, name: str = "blue") -> Opened:
    return open_run(root, name, deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))


def living(root: Path, name: str) -> Run:
    """A run whose supervisor is this very process."""
    directory, run, lock = opened(root, name)
    run = dataclasses.replace(run, supervisor=os.getpid(), supervisor_started=procfs.identity(os.getpid()))
    directory.save(run)
    os.close(lock)
    return run


def stale(root: Path, name: str, **changes: object) -> Run:
    directory = run_directory.RunDir.of(root, name)
    run = dataclasses.replace(living(root, name), supervisor_started="other-1", state=State.SERVING, **changes)
    directory.save(run)
    return run
