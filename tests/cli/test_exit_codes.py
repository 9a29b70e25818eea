"""The table of exit codes in docs/cli.md, row by row, as a script meets it."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from pathlib import Path

import pytest

from pdctl.cli import exits
from pdctl.cli.app import VERBS
from pdctl.errors import ExitCode
from pdctl.launch import preflight, procfs
from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import Process, RunOutcome, State, with_process
from tests.cases import for_each
from tests.launch.conftest import QUICK, deploy
from tests.trace.recordings import ROOMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
KILLED = str(ROOMS / "1p1d-decode-killed-debug-sgl058")
HEALTHY = str(ROOMS / "2p1d-healthy-debug-sgl058")
FOREIGN = str(Path(__file__).resolve().parents[1] / "snapshots" / "files" / "foreign.log")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def code(argv: list[str]) -> int:
    try:
        exits.run(argv)
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_every_code_there_is_stands_in_the_table() -> None:
    listed = {int(found) for found in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    assert listed == {int(each) for each in ExitCode}


def written(folder: Path) -> str:
    """A script whose two instances no plan can run together."""
    start = "python3 -m sglang.launch_server --model-path m"
    script = folder / "run.sh"
    script.write_text(
        f"{start} --disaggregation-mode prefill --tp 3\n{start} --disaggregation-mode decode --tp 2 --port 30001\n"
    )
    return str(script)


TABLE = (
    # 0: a list is no judgement; nothing runs any more.
    (f"rooms {KILLED}", 0),
    ("ls", 0),
    ("down", 0),
    ("explain PD201", 0),
    (f"dialect check {HEALTHY}", 0),
    ("dialect show sglang", 0),
    ("topology check 2p1d", 0),
    ("topology show 2p1d", 0),
    ("topology schema", 0),
    ("self check", 0),
    ("autoscale policies", 0),
    ("simulate 2p1d --trace steady:rate=2,duration=3", 0),
    ("completion bash", 0),
    ("launch --dry-run 2p1d", 0),
    ("doctor --static 2p1d --select PD2", 0),
    (f"diagnose {HEALTHY}", 0),
    # 1: findings, what cannot be, what broke.
    (f"diagnose {KILLED}", 1),
    (f"trace-room --last-failed {KILLED}", 1),
    ("plan --tp 3 --dp 2", 1),
    ("import {infeasible}", 1),
    (f"dialect check {FOREIGN}", 1),
    (f"rooms {KILLED} --since 23:59:58 --tz UTC", 4),
    ("doctor --static incidents/missing-bootstrap-port", 1),
    # 2: what is on the command line.
    ("rooms --sort nothing", 2),
    ("diagnose nosuch", 2),
    ("rooms nosuch", 2),
    ("trace-room 7 nosuch", 2),
    ("dialect check nosuch", 2),
    ("plan nosuch", 2),
    ("plan nosuch.yaml", 2),
    ("plan 2p1d -F nosuch.yaml", 2),
    ("plan --tp 8 --model nosuch", 2),
    ("launch nosuch", 2),
    ("import nosuch.sh", 2),
    ("topology check nosuch.yaml", 2),
    ("doctor --static nosuch.yaml", 2),
    ("explain PD999", 2),
    ("completion nosuch", 2),
    ("simulate nosuch --trace steady:duration=3", 2),
    ("simulate 2p1d --trace nosuch", 2),
    ("autoscale explain nosuch.yaml", 2),
    ("render kubernetes nosuch", 2),
    ("dialect show nosuch", 2),
    ("doctor --static 2p1d --select PD999", 2),
    # 4: nobody answers; the logs do not tell.
    ("doctor --router http://127.0.0.1:{closed}", 4),
    ("ask --url http://127.0.0.1:{closed} hello", 4),
    ("doctor --static 2p1d --select PD703", 4),
    (f"diagnose {FOREIGN}", 4),
    (f"rooms {FOREIGN}", 4),
    # 5: no such run, instance, room.
    ("status nosuch", 5),
    ("status", 5),
    ("logs nosuch", 5),
    ("logs", 5),
    ("down nosuch", 5),
    ("ask --run nosuch hello", 5),
    ("diagnose --run nosuch", 5),
    ("rooms --run nosuch", 5),
    ("simulate calibrate nosuch", 5),
    ("role-switch prefill-9 --to decode", 5),
    (f"trace-room 424242424242 {HEALTHY}", 5),
)


@for_each(("line", "expected"), TABLE)
def test_the_table(line: str, expected: int, tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused, and nobody else gets it
        taken.bind(("127.0.0.1", 0))
        words = line.format(closed=taken.getsockname()[1], infeasible=written(tmp_path)).split()
        assert code(words) == expected


def test_every_verb_stands_in_the_table() -> None:
    judged = {line.split()[0] for line, _ in TABLE}
    assert judged == {verb.name for verb in VERBS}


@for_each("verb", [verb.name for verb in VERBS])
def test_every_verb_has_the_code_of_a_usage_that_cannot_be(verb: str) -> None:
    assert code([verb, "--no-such-option"]) == 2
    assert code([verb, "--help"]) == 0


def kept(home: Path, state: State, *, alive: bool) -> None:
    """A run `blue` that this very process supervises, or whose supervisor is gone."""
    _, run, lock = open_run(home, "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))
    os.close(lock)
    pid = os.getpid()
    own = procfs.identity(pid)
    run = dataclasses.replace(run, state=state, supervisor=pid, supervisor_started=own if alive else "other-1")
    if alive:
        run = with_process(run, Process("decode-0", pid, own, generation=1))
    outcome = RunOutcome("decode-0 was killed by SIGKILL", 1) if state is State.FAILED else None
    RunDir.of(home, "blue").save(dataclasses.replace(run, outcome=outcome))


@pytest.mark.parametrize(
    ("state", "alive", "line", "expected"),
    [
        (State.FAILED, False, "status", 8),
        (State.STOPPED, False, "status blue", 8),
        (State.SERVING, False, "status", 8),  # its supervisor is gone
        (State.SERVING, True, "status", 8),  # nobody answers
        (State.STARTING, True, "status --wait --timeout 0.1s", 8),
        (State.FAILED, False, "down", 0),
        (State.FAILED, False, "down blue", 0),
        (State.STOPPED, False, "down", 0),
        (State.STOPPED, False, "logs blue decode-9", 5),
        (State.SERVING, True, "role-switch prefill-9 --to decode", 5),
        (State.STOPPED, False, "ls", 0),
    ],
)
def test_the_table_for_a_run(home: Path, state: State, alive: bool, line: str, expected: int) -> None:
    kept(home, state, alive=alive)
    assert code(line.split()) == expected


def test_an_instance_that_does_not_exist_is_answered_with_the_nearest_names(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(home, State.SERVING, alive=True)
    for line in ("role-switch prefil-0 --to decode", "logs blue prefil-0"):
        assert code(line.split()) == 5
        assert "did you mean prefill-0?" in capsys.readouterr().err
