"""How pdctl leaves when the world around it refuses: full disks, closed pipes, Ctrl-C at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pdctl.cli import exits

PLAN = [sys.executable, "-m", "pdctl", "plan", "1p1d"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(PLAN, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (4, "error: No space left on device\n  fix: free space there\n")


def test_a_terminal_without_the_letters() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "TERM": "dumb", "COLUMNS": "1"}
    done = subprocess.run(PLAN, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


# pdctl as `-m pdctl` runs it, which stops at the first import of typer until somebody ends it.
HALF_IMPORTED = """
import runpy, sys, time
class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Stops())
sys.argv = ["pdctl", "ask", "-"]
runpy.run_module("pdctl", run_name="__main__")
"""
# pdctl that says when its verb reads the question.
READING = """
import runpy, sys
class Told:
    def __init__(self, given): self.given = given
    def __getattr__(self, name):
        if name.startswith("read"):
            print("reading", flush=True)
        return getattr(self.given, name)
sys.stdin = Told(sys.stdin)
sys.argv = ["pdctl", "ask", "-"]
runpy.run_module("pdctl", run_name="__main__")
"""


def test_an_interrupt_while_importing_leaves_no_traceback() -> None:
    """Before pdctl's first line the interpreter itself answers; from there on there is no traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", HALF_IMPORTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (-signal.SIGINT, "")


@pytest.mark.skipif(sys.platform != "linux", reason="signal masks are read from /proc")
def test_an_interrupt_of_a_running_verb_leaves_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        assert catches(process.pid)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert "Traceback" not in error
    assert process.returncode in (-signal.SIGINT, 130)


def catches(pid: int) -> bool:
    """Whether the process has a handler for SIGINT."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)


def test_an_interrupt_that_the_caller_ignores_stays_ignored() -> None:
    code = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); " + (
        "p = subprocess.Popen([sys.executable, '-m', 'pdctl', 'plan', '1p1d'], stdout=subprocess.DEVNULL); "
        "[p.send_signal(signal.SIGINT) for _ in range(3)]; sys.exit(p.wait())"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_report_that_cannot_be_written_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        exits._report()
    error = capsys.readouterr().err
    assert error.startswith("error: this is a bug in pdctl: ZeroDivisionError")
    assert "report: above, because it could not be written" in error
    assert "test_exits.py" in error
