"""What a process does where it can start nothing: as a user who may have one process, which root never is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import State

ALONE = ["prlimit", "--nproc=1", "setpriv", "--reuid", "54321", "--bounding-set", "-all,+dac_override"]
ALONE += ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
LIMIT = "no more threads or processes can be started"
HOLD = """
from pdctl import lifeline
line = lifeline.Lifeline()
lifeline.os.environ.update(line.env)
lifeline.hold(lambda: print("cut"))
"""
LAUNCH = """
import sys, threading
from pathlib import Path
from pdctl.launch import remote
from pdctl.launch.run_opening import failing, open_run
from tests.launch.conftest import QUICK, deploy
opened = open_run(Path(sys.argv[1]), "blue", deploy(), QUICK, check=lambda deployment: (), argv=("pdctl", "launch"))
with failing(opened):
    START
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="becomes another user")


def run_alone(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [*ALONE, sys.executable, "-c", script, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_process_that_cannot_watch_its_lifeline_leaves_with_words() -> None:
    done = run_alone(HOLD)
    assert (done.returncode, done.stdout) == (4, "cut\n"), done
    assert done.stderr.startswith(f"error: {LIMIT}\n  fix: raise the limit of this shell (ulimit -u")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("remote.detach(opened.directory, opened.lock)", "BlockingIOError"),
        ("threading.Thread(target=print).start()", "RuntimeError"),
    ],
)
def test_a_launch_that_could_start_nothing_leaves_a_failed_run(tmp_path: Path, start: str, error: str) -> None:
    done = run_alone(LAUNCH.replace("START", start), str(tmp_path))
    assert error in done.stderr, done
    run = RunDir.of(tmp_path, "blue").load()
    assert (run.condition, run.supervisor) == (State.FAILED, None)
    assert run.outcome is not None
    assert run.outcome.message == f"it could not be started: {LIMIT}"
    assert not (tmp_path / "runs/blue/deployment-secret").exists()
