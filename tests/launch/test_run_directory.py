"""What is on disk is what is believed, and what cannot be believed is said."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pdctl.errors import LaunchError, NotFoundError, PdctlError, UsageError
from pdctl.launch import launched, preflight, procfs, remote, run_choice, run_directory, run_opening, run_record
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import EventKind, Exit, Process, Run, RunEvent, RunOutcome, StartStage, State, with_process
from tests.cli.verb import within
from tests.launch.conftest import QUICK, deploy
from tests.launch.runs import living, opened, stale


def test_a_run_survives_the_disk(tmp_path: Path) -> None:
    directory, run, lock = opened(tmp_path)
    run = with_process(run, Process("decode-0", 12, "x-1", 1.5, 2, 7, Exit(0, 9, 3.25)))
    event = RunEvent(1.0, EventKind.STAGE, "decode-0", StartStage.READY, "ready", 0.5, 2)
    run = dataclasses.replace(run, events=(event,), outcome=RunOutcome("stopped", signal=15), state=State.STOPPED)
    directory.save(run)
    assert directory.load() == run
    assert json.loads((directory.path / "run.json").read_text())["schema"] == "pdctl.run/1"
    os.close(lock)


def test_documents_of_other_versions_can_be_read() -> None:
    assert run_record.decode(Exit, {"code": 1, "signal": 0, "at": 2, "new_field": []}) == Exit(1, 0, 2.0)
    with pytest.raises(ValueError, match=r"Process\.pid: expected int, found 'x'"):
        run_record.decode(Process, {"name": "a", "pid": "x"})
    with pytest.raises(ValueError, match="Exit: "):
        run_record.decode(Exit, {"code": 1})


def test_a_launch_waits_for_the_supervisor_of_a_run_that_is_over_to_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, run, lock = opened(tmp_path)
    directory.save_end(dataclasses.replace(run, state=State.FAILED, outcome=RunOutcome("it failed", 1)))
    exiting = threading.Timer(0.3, os.close, (lock,))
    exiting.start()
    again = opened(tmp_path)
    exiting.join()
    assert again.run.state is State.STARTING
    again.directory.save_end(dataclasses.replace(again.run, state=State.FAILED, outcome=RunOutcome("it failed", 1)))
    monkeypatch.setattr(run_opening, "EXITING", 0.2)
    with pytest.raises(LaunchError, match="run `blue` is failed"):
        opened(tmp_path)
    os.close(again.lock)


def test_a_second_launch_of_a_living_run_is_refused(tmp_path: Path) -> None:
    _, _, lock = opened(tmp_path)
    with pytest.raises(
        LaunchError, match=r"run `blue` is starting at \S+ \(its supervisor is being started, for "
    ) as refused:
        opened(tmp_path)
    assert refused.value.fix.startswith("pdctl down blue")
    os.close(lock)
    os.close(opened(tmp_path).lock)


@pytest.mark.parametrize("name", ["", "Blue", "../up", "a b", "-x", "x" * 64])
def test_names_that_cannot_be_directories(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        opened(tmp_path, name)


def test_the_state_directory() -> None:
    assert run_directory.home({"PDCTL_HOME": "/x", "XDG_STATE_HOME": "/y"}) == Path("/x")
    assert run_directory.home({"XDG_STATE_HOME": "/y"}) == Path("/y/pdctl")
    assert run_directory.home({}) == Path.home() / ".local/state/pdctl"


def test_a_later_process_with_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    run = dataclasses.replace(living(tmp_path, "blue"), supervisor_started="other-1", state=State.SERVING)
    assert run.condition is State.STALE
    assert dataclasses.replace(run, state=State.STOPPED).condition is State.STOPPED


def test_what_a_vanished_supervisor_left_is_ended_and_written_down(tmp_path: Path) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process = Process("decode-0", left.pid, procfs.identity(left.pid), generation=1)
    run = dataclasses.replace(
        with_process(run, process), state=State.SERVING, supervisor=os.getpid(), supervisor_started="gone"
    )
    directory.save(run)
    assert run.survivors == (process,)
    ended = remote.stop(directory, run, force=False, timeout=5.0, emit=lambda event: None)
    assert left.wait(timeout=5) == -9
    assert ended.state is State.STOPPED
    assert directory.load().outcome == RunOutcome("ended from outside: its supervisor was gone", 1)


def ends_when_asked(monkeypatch: pytest.MonkeyPatch, directory: run_directory.RunDir, run: Run) -> Run:
    """Let the supervisor of `run` write its last word and leave in the moment between a reading and the question."""
    last = RunEvent(9.0, EventKind.ENDED, "", None, "stopped by SIGTERM", 0.0, 0)
    over = dataclasses.replace(
        run, state=State.STOPPED, events=(*run.events, last), outcome=RunOutcome("stopped by SIGTERM", signal=15)
    )

    def asked(pid: int | None, identity: str) -> bool:
        if pid == run.supervisor:
            directory.save(over)
        return False

    monkeypatch.setattr(procfs, "is_alive", asked)
    return over


@pytest.mark.parametrize("how", ["watch", "stop", "await_serving"])
def test_the_last_word_of_a_supervisor_is_heard_by_whoever_reads_while_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run = dataclasses.replace(
        living(tmp_path, "blue"), state=State.SERVING if how != "await_serving" else State.STARTING
    )
    directory = run_directory.RunDir.of(tmp_path, "blue")
    directory.save(run)
    over = ends_when_asked(monkeypatch, directory, run)
    heard: list[RunEvent] = []
    if how == "watch":
        assert remote.watch(directory, heard.append) == over
    elif how == "stop":
        assert remote.stop(directory, run, force=False, timeout=5.0, emit=heard.append) == over
    else:
        with pytest.raises(LaunchError, match="stopped by SIGTERM"):
            remote.await_serving(directory, lambda: not directory.load().alive, heard.append)
    assert [event.detail for event in heard] == ["stopped by SIGTERM"]


def test_a_run_that_ends_in_order_while_it_is_looked_at_is_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dataclasses.replace(living(tmp_path, "blue"), state=State.SERVING)
    directory = run_directory.RunDir.of(tmp_path, "blue")
    directory.save(run)
    ends_when_asked(monkeypatch, directory, run)
    assert run_choice.find_run(tmp_path, "blue").condition is State.STOPPED
    directory.save(run)
    assert [one.condition for one in run_choice.load_all(tmp_path)[0]] == [State.STOPPED]
    directory.save(run)
    assert run_choice.find_run(tmp_path, None, (State.STOPPED,)).condition is State.STOPPED


def test_a_run_that_was_looked_at_keeps_its_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dataclasses.replace(living(tmp_path, "blue"), state=State.SERVING)
    directory = run_directory.RunDir.of(tmp_path, "blue")
    directory.save(run)
    seen = directory.look()
    monkeypatch.setattr(procfs, "is_alive", lambda pid, identity: False)
    assert seen.condition is State.SERVING
    assert "gone" not in json.loads((directory.path / "run.json").read_text())


def test_what_a_supervisor_wrote_before_it_was_killed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    deaf = subprocess.Popen(["sleep", "600"], start_new_session=True)
    run = dataclasses.replace(
        run, state=State.SERVING, supervisor=deaf.pid, supervisor_started=procfs.identity(deaf.pid)
    )
    directory.save(run)
    over = dataclasses.replace(run, state=State.FAILED, outcome=RunOutcome("decode-0 died", 1))
    signal_sent = remote._signal

    def write_and_die(found: Run, number: int) -> None:
        directory.save(over)
        signal_sent(found, signal.Signals(number))
        deaf.wait(5)

    monkeypatch.setattr(remote, "_signal", write_and_die)
    assert remote.stop(directory, run, force=True, timeout=0.0, emit=lambda event: None).outcome == over.outcome


# What reads as a user does who owns nothing here: root may read everything, unless it has given that up.
OTHER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def closed_to_others(folder: Path) -> str:
    """Take the right to read it; the name of whoever has it then."""
    folder.chmod(0)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        home = next(each.parent for each in (folder, *folder.parents) if each.name == "runs")
        return f"run as its owner: sudo -u {pwd.getpwuid(65534).pw_name} env PDCTL_HOME={home} pdctl …"
    return "check the permissions of "


@pytest.mark.parametrize(
    ("closed", "argv", "code"),
    [("runs", "status", 4), ("runs/blue", "ls", 0), ("runs/blue", "logs blue", 4), ("runs/blue/logs", "logs blue", 4)],
)
def test_what_another_user_owns_is_not_called_missing(tmp_path: Path, closed: str, argv: str, code: int) -> None:
    os.close(opened(tmp_path).lock)
    folder = tmp_path / closed
    (tmp_path / "runs/blue/logs/decode-0.log").write_text("[2026-01-01 00:00:00] a line\n")
    owner = closed_to_others(folder)
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    command = [*OTHER, sys.executable, "-m", "pdctl", *argv.split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert f"cannot read {folder}" in done.stderr, done
    assert "permission denied" in done.stderr
    assert owner in done.stderr
    assert "chmod" not in done.stderr
    assert done.returncode == code
    assert "no run was ever launched" not in done.stderr
    assert "no logs" not in done.stderr
    folder.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0 or not procfs.LINUX, reason="starts a process of another user")
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_run_of_another_user_is_not_ended_but_said_to_be_theirs(tmp_path: Path, force: tuple[str, ...]) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    owner = pwd.getpwuid(65534).pw_name
    with subprocess.Popen(["setpriv", "--reuid", "65534", "sh", "-c", "echo; read x"], stdin=-1, stdout=-1) as theirs:
        assert theirs.stdout is not None
        theirs.stdout.readline()
        identity = procfs.identity(theirs.pid)
        directory.save(
            dataclasses.replace(run, state=State.SERVING, supervisor=theirs.pid, supervisor_started=identity)
        )
        os.chown(directory.path, 65534, 65534)
        command = ["setpriv", "--bounding-set", "-kill", sys.executable, "-m", "pdctl", "down", "blue", *force]
        env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (4, "")
        assert f"run `blue` is {owner}'s: only its owner can end it" in done.stderr
        again = " ".join(("pdctl down blue", *force))
        assert f"fix: run as its owner: sudo -u {owner} env PDCTL_HOME={tmp_path} {again}\n" in done.stderr
        assert theirs.poll() is None
        theirs.communicate()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_logs_of_a_run_are_its_own_and_those_of_earlier_ones_have_a_name(tmp_path: Path, elsewhere: bool) -> None:
    def launch_once(line: str) -> None:
        logs = str(tmp_path / "logs") if elsewhere else None
        directory, run, lock = open_run(
            tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"), logs=logs
        )
        directory.log("decode-0").write_text(f"{line}\n")
        directory.save(dataclasses.replace(run, supervisor=1 << 30, supervisor_started="gone"))
        os.close(lock)

    def logs_of(name: str) -> str:
        files = launched.find_launched(tmp_path, name).log_files()
        return "".join(Path(path).read_text() for path in files.names)

    for number in range(1, 9):
        launch_once(f"line {number}")
        assert logs_of("blue") == f"line {number}\n"
    assert {run.name for run in run_choice.load_all(tmp_path)[0]} == {"blue", *(f"blue.{n}" for n in range(3, 8))}
    for number in range(3, 8):
        assert logs_of(f"blue.{number}") == f"line {number}\n"
        assert run_choice.find_run(tmp_path, f"blue.{number}").state is State.FAILED
    with pytest.raises(NotFoundError):
        run_choice.find_run(tmp_path, "blue.2")
    if elsewhere:
        names = sorted(each.name for each in (tmp_path / "logs").iterdir())
        assert names == ["blue", *(f"blue.{n}" for n in range(3, 8))]
        assert (tmp_path / "logs/blue/decode-0.log").read_text() == "line 8\n"


def test_a_launch_that_is_refused_leaves_the_run_before_it_as_it_is(tmp_path: Path) -> None:
    os.close(opened(tmp_path).lock)
    taken = preflight.Obstacle("port", "port 1 is taken")
    with pytest.raises(LaunchError):
        open_run(tmp_path, "blue", deploy(), QUICK, check=lambda _: (taken,), argv=("pdctl", "launch"))
    assert [run.name for run in run_choice.load_all(tmp_path)[0]] == ["blue"]


def test_logs_in_a_folder_that_another_home_uses_are_not_mixed_with_its_own(tmp_path: Path) -> None:
    for home in ("one", "two"):
        directory, _, lock = open_run(
            tmp_path / home, "blue", deploy(), QUICK, check=preflight.check, argv=(), logs=str(tmp_path / "logs")
        )
        directory.log("decode-0").write_text(f"{home}\n")
        os.close(lock)
    found = {each.name: (each / "decode-0.log").read_text() for each in (tmp_path / "logs").iterdir()}
    assert found == {"blue": "one\n", "blue.2": "two\n"}


def supervised(root: Path, name: str, pid: int) -> Path:
    """The directory of a run that process `pid` supervises."""
    directory, run, lock = opened(root, name)
    os.close(lock)
    known = procfs.identity(pid)
    directory.save(dataclasses.replace(run, state=State.SERVING, supervisor=pid, supervisor_started=known))
    return directory.path


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("how", ["copied", "copied under another name", "moved"])
@pytest.mark.parametrize("left", ["supervisor", "process"])
def test_nothing_is_signalled_for_a_record_of_another_directory(
    tmp_path: Path, how: str, left: str, force: tuple[str, ...]
) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as theirs:
        try:
            source = supervised(tmp_path / "one", "blue", theirs.pid)
            if left == "process":
                run = run_directory.RunDir(source).load()
                process = Process("decode-0", theirs.pid, procfs.identity(theirs.pid), generation=1)
                run = dataclasses.replace(with_process(run, process), supervisor=1 << 30, supervisor_started="gone")
                run_directory.RunDir(source).save(run)
            name = "green" if how == "copied under another name" else "blue"
            if how == "moved":
                (tmp_path / "one").rename(tmp_path / "two")
            else:
                shutil.copytree(source, tmp_path / "two/runs" / name)
            env = {**os.environ, "PDCTL_HOME": str(tmp_path / "two")}
            done = within("down", name, *force, env=env)
            assert theirs.poll() is None, done
            assert (done.returncode, done.stdout) == (1, ""), done
            assert f"kill {theirs.pid}" in done.stderr
            copied = f"fix: PDCTL_HOME={tmp_path / 'one'} pdctl down blue, or end it by hand: kill {theirs.pid}\n"
            expected = {"copied": copied, "moved": f"fix: end it by hand: kill {theirs.pid}\n"}
            assert expected.get(how, "is the record of a run 'blue', not of `green`") in done.stderr
        finally:
            theirs.kill()


def test_a_record_that_was_moved_can_be_read_and_cleared_when_nothing_of_it_lives(tmp_path: Path) -> None:
    stale(tmp_path / "one", "blue")
    (tmp_path / "one").rename(tmp_path / "two")
    found = launched.find_launched(tmp_path / "two", "blue")
    assert found.stop(force=False, limit=5.0, emit=lambda event: None).startswith("blue is stopped")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("file", ["run.json", "notice.json", "roles.json"])
def test_what_is_no_file_in_the_place_of_a_record_keeps_nobody_waiting(tmp_path: Path, file: str, kind: str) -> None:
    os.close(opened(tmp_path).lock)
    os.close(opened(tmp_path, "green").lock)
    place = tmp_path / "runs/blue" / file
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    runs, unreadable = run_choice.load_all(tmp_path)
    assert "green" in {run.name for run in runs}
    if file == "notice.json":  # as one that is not there
        assert (len(runs), unreadable) == (2, ())
    else:
        assert len(runs) == 1
        assert f"{place} cannot be read: it is not a regular file" in unreadable[0]


@pytest.mark.parametrize("where", ["run", "deployment", "process"])
def test_a_name_that_would_write_to_the_terminal_is_refused(tmp_path: Path, where: str) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    forged = "blue\x1b[2J\n  fix: rm -rf /"
    directory.save({
        "run": dataclasses.replace(run, name=forged),
        "deployment": dataclasses.replace(run, deployment=dataclasses.replace(run.deployment, name=forged)),
        "process": dataclasses.replace(run, processes=(Process(forged),)),
    }[where])  # fmt: skip
    with pytest.raises(PdctlError, match=r"run\.json cannot be read: .*name: expected printable text") as refused:
        directory.load()
    assert "\n" not in refused.value.message
    assert "\x1b" not in refused.value.message
    with pytest.raises(ValueError, match=r"Process\.name: expected a name, found '\.\./x'"):
        run_record.decode(Process, {"name": "../x"})
