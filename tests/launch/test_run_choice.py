"""Which run a command means, with a name and without one, and which are there at all."""

from __future__ import annotations

import dataclasses
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from pdctl.errors import NotFoundError, PdctlError, UsageError
from pdctl.launch import procfs, run_choice, run_directory
from pdctl.launch.run_record import OVER, EventKind, Run, RunEvent, RunOutcome, State
from tests.launch.runs import living, opened, stale


def test_the_only_living_run_need_not_be_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run is alive"):
        run_choice.find_run(tmp_path, None)
    living(tmp_path, "blue")
    assert run_choice.find_run(tmp_path, None).name == "blue"
    living(tmp_path, "green")
    with pytest.raises(UsageError, match="2 runs are alive"):
        run_choice.find_run(tmp_path, None)
    assert run_choice.find_run(tmp_path, "blue").name == "blue"
    with pytest.raises(NotFoundError, match="no run `red`") as missing:
        run_choice.find_run(tmp_path, "red")
    assert "blue" in missing.value.fix


def test_a_stale_run_is_not_alive(tmp_path: Path) -> None:
    stale(tmp_path, "cc")
    with pytest.raises(NotFoundError, match="`cc` is stale: its supervisor died") as caught:
        run_choice.find_run(tmp_path, None)
    assert caught.value.fix == "pdctl down cc"
    assert run_choice.find_run(tmp_path, None, (State.STALE,)).name == "cc"
    living(tmp_path, "blue")
    assert run_choice.find_run(tmp_path, None).name == "blue"
    assert run_choice.find_run(tmp_path, None, (State.STALE,)).name == "blue"


def test_a_run_that_failed_is_meant_only_while_it_is_the_latest(tmp_path: Path) -> None:
    stale(tmp_path, "red", created=1.0)
    stale(tmp_path, "green", created=2.0)
    run_directory.RunDir.of(tmp_path, "green").save(
        dataclasses.replace(run_directory.RunDir.of(tmp_path, "green").load(), state=State.FAILED)
    )
    assert run_choice.find_run(tmp_path, None, (State.FAILED,)).name == "green"
    run_directory.RunDir.of(tmp_path, "green").save(
        dataclasses.replace(run_directory.RunDir.of(tmp_path, "green").load(), state=State.STOPPED)
    )
    with pytest.raises(NotFoundError, match="no run is alive"):
        run_choice.find_run(tmp_path, None, (State.FAILED,))


def ended(root: Path, name: str, launched: float, over: float, state: State, words: str) -> Run:
    directory, run, lock = opened(root, name)
    os.close(lock)
    events = (RunEvent(over, EventKind.ENDED),)
    run = dataclasses.replace(run, created=launched, events=events, state=state, outcome=RunOutcome(words))
    directory.save(run)
    return run


def test_without_a_name_the_run_that_ended_last_is_meant_and_not_the_one_launched_last(tmp_path: Path) -> None:
    ended(tmp_path, "blue", 100.0, 900.0, State.FAILED, "router was killed by SIGKILL")
    ended(tmp_path, "green", 200.0, 300.0, State.STOPPED, "SIGINT")
    assert run_choice.find_run(tmp_path, None, OVER).name == "blue"
    assert run_choice.find_run(tmp_path, None, (State.FAILED,)).name == "blue"
    with pytest.raises(NotFoundError, match="the last to end, `blue`, failed: router was killed by SIGKILL"):
        run_choice.find_run(tmp_path, None)
    stale(tmp_path, "red", created=50.0)  # launched first of all; its logs were written to just now
    run_directory.RunDir.of(tmp_path, "red").log("router").write_text("alive until now\n")
    assert run_choice.find_run(tmp_path, None, OVER).name == "red"


def test_runs_that_ended_badly_since_the_chosen_one_began_are_known(tmp_path: Path) -> None:
    ended(tmp_path, "old", 10.0, 20.0, State.FAILED, "x")
    ended(tmp_path, "blue", 100.0, 900.0, State.FAILED, "router was killed by SIGKILL")
    ended(tmp_path, "fine", 500.0, 950.0, State.STOPPED, "SIGINT")
    chosen = ended(tmp_path, "green", 200.0, 1000.0, State.STOPPED, "SIGINT")
    assert [run.name for run in run_choice.ended_badly_since(tmp_path, chosen)] == ["blue"]


def test_an_unreadable_run_is_named_and_the_others_still_listed(tmp_path: Path) -> None:
    living(tmp_path, "blue")
    (tmp_path / "runs" / "red").mkdir()
    (tmp_path / "runs" / "red" / "run.json").write_text("{")
    runs, unreadable = run_choice.load_all(tmp_path)
    assert [run.name for run in runs] == ["blue"]
    assert "runs/red/run.json cannot be read" in unreadable[0]
    with pytest.raises(PdctlError, match="cannot be read"):
        run_choice.find_run(tmp_path, "red")


@pytest.mark.skipif(os.geteuid() != 0 or not procfs.LINUX, reason="starts a process of another user")
def test_runs_that_other_users_supervise_are_named(tmp_path: Path) -> None:
    """Their directory cannot be read, but whose it is and where stands in the process table."""
    words = [
        "setpriv",
        "--reuid",
        "65534",
        "sh",
        "-c",
        "echo; read line",
        run_directory.SUPERVISOR,
        "/home/n/runs/green",
        "3",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        owner = pwd.getpwuid(65534).pw_name
        ask = f"sudo -u {owner} env PDCTL_HOME=/home/n pdctl …"
        said = f"{owner} runs /home/n/runs/green (pid {supervisor.pid}): {ask}"
        assert said in run_choice.runs_of_others()
        with pytest.raises(NotFoundError) as missing:
            run_choice.find_run(tmp_path, None)
        assert said in missing.value.message
        supervisor.communicate()
