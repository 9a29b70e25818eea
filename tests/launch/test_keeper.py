"""The keeper ends with its command, hands signals on, and takes the whole tree with it when the lifeline is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.launch import procfs
from pdctl.lifeline import Lifeline
from tests.launch.conftest import DEADLINE, eventually

KEEPER = (sys.executable, "-m", "pdctl.launch.keeper")
# Writes the ids of a child in a session of its own and of that child's child, then waits.
BROOD = """
import subprocess, sys, time
inner = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True); " \
        "open(sys.argv[1], 'a').write(f'{p.pid}\\\\n'); time.sleep(600)"
p = subprocess.Popen([sys.executable, '-c', inner, sys.argv[1]], start_new_session=True)
open(sys.argv[1], 'a').write(f'{p.pid}\\n')
if len(sys.argv) > 2:
    while len(open(sys.argv[1]).readlines()) < 2:
        time.sleep(0.01)
    sys.exit(int(sys.argv[2]))
time.sleep(600)
"""

pytestmark = pytest.mark.skipif(not procfs.LINUX, reason="finding a tree that has changed its session needs /proc")


def keep(*command: str, lifeline: Lifeline | None = None) -> subprocess.Popen[bytes]:
    env = {**os.environ, **(lifeline.env if lifeline else {})}
    fds = lifeline.fds if lifeline else ()
    return subprocess.Popen([*KEEPER, "--", *command], env=env, pass_fds=fds, start_new_session=True)


def brood(path: Path) -> list[int]:
    eventually(lambda: path.exists() and len(path.read_text().splitlines()) == 2, "child and grandchild run")
    return [int(line) for line in path.read_text().splitlines()]


def gone(pids: list[int]) -> bool:
    return all(procfs.stat(pid) is None for pid in pids)


HOLDS = "import time; from pdctl import lifeline; lifeline.hold(); time.sleep(1); print('held')"


def test_a_program_of_ours_behind_a_wrapper_outlives_the_closed_descriptor() -> None:
    lifeline = Lifeline()
    env = {**os.environ, **lifeline.env}
    command = [*KEEPER, "--", "env", sys.executable, "-c", HOLDS]
    done = subprocess.run(command, env=env, pass_fds=lifeline.fds, capture_output=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, b"held\n")
    closed = subprocess.run([sys.executable, "-c", HOLDS], env=env, capture_output=True, timeout=DEADLINE)
    assert (closed.returncode, closed.stdout) == (0, b"held\n")
    os.close(lifeline.fds[0])


def test_a_cut_lifeline_ends_grandchildren_in_sessions_of_their_own(tmp_path: Path) -> None:
    lifeline = Lifeline()
    pids = tmp_path / "pids"
    keeper = keep(sys.executable, "-c", BROOD, str(pids), lifeline=lifeline)
    tree = [*brood(pids), *procfs.descendants(keeper.pid)]
    assert len(set(tree)) == 3
    lifeline.cut()
    keeper.wait(timeout=DEADLINE)
    eventually(lambda: gone(tree), "the whole tree is gone", 2.0)
    os.close(lifeline.fds[0])


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    keeper = keep(sys.executable, "-c", BROOD, str(pids), "7")
    assert keeper.wait(timeout=DEADLINE) == 7
    eventually(lambda: gone(brood(pids)), "the command's children are gone", 2.0)


def test_a_signal_reaches_the_command_and_its_end_is_the_keepers() -> None:
    keeper = keep("sleep", "600")
    eventually(lambda: any("sleep 600" in procfs.command_line(p) for p in procfs.descendants(keeper.pid)), "sleep runs")
    keeper.terminate()
    assert keeper.wait(timeout=DEADLINE) == -signal.SIGTERM


def test_the_command_meets_signals_as_if_started_by_a_shell() -> None:
    assert keep("sh", "-c", "kill -PIPE $$").wait(timeout=DEADLINE) == -signal.SIGPIPE


def test_a_command_that_does_not_exist_is_named() -> None:
    done = subprocess.run([*KEEPER, "--", "no-such-command"], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 127
    assert done.stderr == "cannot start no-such-command: No such file or directory\n"


def test_a_tied_process_becomes_the_command_and_dies_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    tie = f"{KEEPER[0]} -m {KEEPER[2]} --exec $$ -- sleep 600"
    shell = subprocess.Popen(["sh", "-c", f"{tie} & echo $! > {pid_file}; wait"], start_new_session=True)
    eventually(lambda: pid_file.exists() and pid_file.read_text().strip(), "the command was started")
    pid = int(pid_file.read_text())
    eventually(lambda: procfs.command_line(pid) == "sleep 600", "it has become the command")
    shell.kill()
    shell.wait(timeout=DEADLINE)
    eventually(lambda: procfs.stat(pid) is None, "the kernel has ended it", 2.0)


def test_a_tie_to_somebody_else_is_refused() -> None:
    done = subprocess.run([*KEEPER, "--exec", "1", "--", "true"], timeout=DEADLINE)
    assert done.returncode == 1


def test_a_supervisor_without_a_temporary_directory_clears_what_it_can() -> None:
    left = Path("/tmp") / f"pdctl-{os.getpid()}-left"
    left.mkdir()
    code = (
        "import resource, sys; from pdctl.launch.process import clear_sockets; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); clear_sockets(int(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(os.getpid())], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stderr, left.exists()) == (0, "", False)
