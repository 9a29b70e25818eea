"""A step's tasks as real processes; `env` stands for srun, which only says to each which host it is on."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from pdctl.launch import procfs
from pdctl.launch.deployment import ServerRole, Spec
from pdctl.launch.runtime import Exited, Located
from pdctl.launch.slurm import step as steps
from pdctl.launch.slurm.step import SlurmStep
from tests.launch.conftest import eventually, standin

SRUN = ("env", "SLURMD_NODENAME=n1", "SLURM_STEP_ID=4")


def spec(*argv: str) -> Spec:
    return dataclasses.replace(
        standin(ServerRole.DECODE, 0, 1), argv=argv, place="n1", env=(("SGLANG_HOST_IP", "10.0.0.1"),)
    )


def started(
    tmp_path: Path, *argv: str, words: tuple[str, ...] = SRUN
) -> tuple[SlurmStep, SimpleQueue[Exited | Located]]:
    posted: SimpleQueue[Exited | Located] = SimpleQueue()
    step = SlurmStep("blue", "12", tmp_path / "steps", [spec(*argv)], 2, [tmp_path / "decode-0.g2.log"])
    step.start(words, posted.put)
    return step, posted


def exit_of(posted: SimpleQueue[Exited | Located]) -> Exited:
    while True:
        message = posted.get(timeout=30)
        if isinstance(message, Exited):
            return message


def test_a_task_takes_the_command_of_its_host_and_leaves_records(tmp_path: Path) -> None:
    program = "import os; print('at', os.environ['SGLANG_HOST_IP'], os.environ['PDCTL_RUN']); raise SystemExit(3)"
    step, posted = started(tmp_path, sys.executable, "-c", program)
    located = posted.get(timeout=30)
    assert isinstance(located, Located)
    assert (located.name, located.generation, step.id) == ("decode-0", 2, "12.4")
    ended = exit_of(posted)
    assert (ended.exit.code, ended.exit.signal, ended.exit.lost) == (3, 0, "")
    log = (tmp_path / "decode-0.g2.log").read_text()
    assert "at 10.0.0.1 blue\n" in log
    assert "pdctl: decode-0 generation 2: " in log
    assert "pdctl: decode-0 generation 2 left with exit code 3" in log


def test_what_a_killed_command_started_goes_with_it(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    step, posted = started(tmp_path, sys.executable, "-c", child)
    eventually(lambda: step.ranks[0].pid and len(procfs.descendants(step.ranks[0].pid)) == 2, "both processes run")
    command, below = procfs.descendants(step.ranks[0].pid)
    os.kill(command, signal.SIGKILL)
    assert exit_of(posted).exit.signal == signal.SIGKILL
    assert procfs.stat(below) is None


def test_an_end_without_a_record_is_told_with_the_last_word_of_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LAG", 0.3)
    _, posted = started(tmp_path, "sleep", "60", words=("sh", "-c", "echo srun: error: no such host >&2; exit 0"))
    assert exit_of(posted).exit.lost == "was lost on n1: it did not start (srun: error: no such host)"
    step, posted = started(tmp_path, "sleep", "60")
    eventually(lambda: step.ranks[0].pid, "the task has begun")
    os.kill(step.ranks[0].pid, signal.SIGKILL)
    assert exit_of(posted).exit.lost.startswith("was lost on n1: it ended without a record")


def test_a_host_that_the_step_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LAG", 0.3)
    _, posted = started(tmp_path, "true", words=("env", "SLURMD_NODENAME=n9", "SLURM_STEP_ID=0"))
    assert "has no command for node n9" in exit_of(posted).exit.lost


def test_srun_is_given_up_when_a_killed_step_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No scancel reaches a host that is gone, and srun waits for it."""
    monkeypatch.setattr(steps, "LAG", 0.3)
    monkeypatch.setattr(steps, "DEAF", 0.5)
    step, posted = started(tmp_path, "true", words=("sh", "-c", "sleep 60"))
    began = time.monotonic()
    step.id = "12.4"  # as if it had begun
    step.kill()
    assert exit_of(posted).exit.lost
    assert time.monotonic() - began < 30
