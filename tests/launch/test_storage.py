"""Full, read-only and forbidden places: the fleet serves on, what is lost is said, what is kept is whole."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl import user_files
from pdctl.errors import ExitCode, StorageError
from pdctl.launch import preflight, remote, storage
from pdctl.launch.journal import Journal
from pdctl.launch.run_opening import Opened, open_run
from pdctl.launch.run_record import EventKind, Process, RunOutcome, State
from pdctl.launch.storage import CrashNotice, Notice
from tests.cases import for_each
from tests.cli.verb import Verb
from tests.launch.conftest import QUICK, deploy

ROOT = Path(__file__).parents[2]
MOUNTS = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = 'd=$(mktemp -d) && mount -t tmpfs -o size=64k none "$d" && umount "$d" && rmdir "$d"'
    return subprocess.run([*MOUNTS, "sh", "-c", probe], capture_output=True, check=False).returncode == 0


def opened(root: Path) -> Opened:
    return open_run(root, "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
def test_a_run_on_a_full_disk(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [*MOUNTS, sys.executable, "-m", "tests.launch.full_disk", str(tmp_path)]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    codes = {name: answer[0] for name, answer in told.items() if isinstance(answer[0], int) and name != "served"}
    assert 3 not in codes.values(), told
    assert codes["launch"] == 0, told["launch"]
    assert told["served"] == [200] * 20
    assert codes["status"] == 0, told["status"]
    logs = str(tmp_path / "disk/home/runs/blue/logs")
    assert "logs are being lost since " in told["status"][1]
    assert f": No space left on device ({logs})" in told["status"][1]
    assert json.loads(told["status json"][1])["logs_lost"].startswith("logs are being lost since ")
    assert codes["ls"] == codes["logs"] == 0
    (found,) = json.loads(told["doctor of the disk"][1])["findings"]
    assert (codes["doctor of the disk"], found["code"], found["severity"]) == (1, "PD807", "error")
    assert found["observed"] == "0 bytes left"
    assert found["evidence"][0].startswith(f"{logs}: 0 of ")
    assert found["evidence"][1].startswith("logs are being lost since ")
    assert told["run.json"] == "serving"  # the last one that could be written, whole
    assert (codes["down"], told["down"][1]) == (0, "blue is stopped\n")
    assert codes["down again"] == 0
    assert json.loads(told["ls after"][1])["runs"][0]["state"] == "stopped"
    code, _, error = told["launch on the full disk"]
    assert code == ExitCode.NOT_PROBED
    assert "No space left on device" in error
    assert "PDCTL_HOME" in error
    assert "blue: stopped" in told["status of the old one"][1]
    assert told["directories"] == ["blue"]
    assert codes["launch again"] == 0, told["launch again"]
    assert codes["logs of the old one"] == 0
    assert "being lost" not in told["status of the new one"][1]


LAUNCHES = """
mkdir disk && mount -t tmpfs -o size=64k none disk && export PDCTL_HOME=$PWD/disk/home
dd if=/dev/zero of=disk/fill bs=1k count=56 2>/dev/null
"$@" launch 1p1d -d --no-doctor; echo "code $?"
"$@" ls >&2; "$@" launch 1p1d -d --name refused --set model.path=nowhere
echo "code $?"; "$@" status 1p1d; echo "code $?"; "$@" ls >&2; echo "code $?"
"""


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
def test_a_launch_that_a_full_disk_kept_from_being_recorded_is_listed(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [*MOUNTS, "sh", "-c", LAUNCHES, "sh", sys.executable, "-m", "pdctl"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:4] == ["code 4", "code 1", "code 4", "code 0"], done
    said = "a launch of `1p1d` failed before it was recorded: no run.json in "
    assert done.stderr.count(f"warning: {said}") == 2, done.stderr
    assert done.stderr.count(f"error: {said}") == 1
    assert "(now: No space left on device)" in done.stderr
    assert "no run was ever launched here" not in done.stderr
    assert "a launch of `refused`" not in done.stderr  # nothing was lost of it, and its error said why


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
def test_a_disk_that_fills_while_a_run_starts(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [*MOUNTS, sys.executable, "-m", "tests.launch.full_disk", str(tmp_path), "starting"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    code, said, progress = told["launch"]
    assert code == 0, told
    assert "blue" in said
    assert progress.count("logs are being lost since ") == 1, progress
    assert told["run.json"] == "starting"  # the last one that could be written
    assert told["status"][0] == 0, told["status"]
    assert "No space left on device" in told["status"][1]
    assert [(run["state"]) for run in json.loads(told["ls"][1])["runs"]] == ["serving"]
    assert told["run.json later"] == "serving"
    assert "being lost" not in told["status later"][1]


def test_what_happened_meanwhile_is_saved_when_there_is_space_again(tmp_path: Path) -> None:
    directory, run, lock = opened(tmp_path)
    journal = Journal(directory, run, lambda event: None)
    file = directory.path / "run.json"
    before = file.read_bytes()
    draft = directory.path / f".run.json.{os.getpid()}"
    draft.mkdir()  # the draft cannot be written
    journal.note(EventKind.SERVING, detail="http://x")
    journal.state(State.SERVING)
    journal.note(EventKind.STAGE, "router")
    assert file.read_bytes() == before
    meanwhile = directory.load()
    assert (meanwhile.state, meanwhile.supervisor) == (State.SERVING, os.getpid())
    draft.rmdir()
    journal.check_storage()
    assert storage.read(directory.path).state is None
    assert json.loads(file.read_bytes())["state"] == "serving"
    assert [event.kind for event in directory.load().events] == [EventKind.SERVING, EventKind.STAGE]
    os.close(lock)


def test_a_watch_tells_once_that_it_began_and_once_that_it_is_over(tmp_path: Path) -> None:
    directory, _, lock = opened(tmp_path)
    watch = storage.DiskWatch(directory.path, directory.logs)
    error = OSError(28, "No space left on device")
    said = watch.look(error)
    assert said.startswith("logs are being lost since ")
    assert said.endswith(f": No space left on device ({directory.path})")
    assert watch.look(error) == ""
    assert storage.read(directory.path).lost
    watch._next = 0.0
    assert watch.look(None).startswith("logs are written again after ")
    assert storage.read(directory.path) == Notice()
    os.close(lock)


def test_the_notice_keeps_its_size_whatever_it_says(tmp_path: Path) -> None:
    storage.prepare(tmp_path)
    for notice in (Notice(1.0, "x", "y"), Notice(crash="c" * 9000), Notice(outcome=RunOutcome("m" * 900, code=1))):
        storage.write(tmp_path, notice)
        assert (tmp_path / storage.FILE).stat().st_size == storage.SIZE
    assert storage.read(tmp_path).outcome == RunOutcome("m" * 900, code=1)
    (tmp_path / storage.FILE).write_bytes(b"[" * 100_000)
    assert storage.read(tmp_path) == Notice()


def test_a_notice_of_many_processes_goes_without_them(tmp_path: Path) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    many = tuple(Process(f"decode-{number}", 1000 + number, "s" * 40) for number in range(200))
    storage.write(directory.path, storage.unsaved(Notice(1.0, "full", "/x"), dataclasses.replace(run, processes=many)))
    assert storage.read(directory.path).lost
    assert storage.read(directory.path).state is run.state
    assert directory.load().processes == run.processes
    storage.write(directory.path, storage.unsaved(Notice(), dataclasses.replace(run, processes=many[:4])))
    assert directory.load().processes == many[:4]


def test_an_end_that_run_json_cannot_tell_is_told(tmp_path: Path) -> None:
    directory, run, lock = opened(tmp_path)
    os.close(lock)
    (directory.path / f".run.json.{os.getpid()}").mkdir()
    directory.save_end(run.__class__(**{**{f: getattr(run, f) for f in run.__slots__}, "state": State.STOPPED}))
    assert directory.load().state is State.STOPPED
    os.close(opened(tmp_path / "other").lock)


def test_the_last_words_of_a_supervisor_reach_status(tmp_path: Path) -> None:
    directory, _, lock = opened(tmp_path)
    os.close(lock)
    with pytest.raises(ZeroDivisionError), CrashNotice(directory.path, "blue"):
        _ = 1 / 0
    crash = storage.read(directory.path).crash
    assert crash.startswith("ZeroDivisionError: division by zero at ")
    assert "test_storage.py:" in crash
    assert "the supervisor failed: ZeroDivisionError" in remote._crashed(directory, directory.load()).message


def test_the_last_words_may_name_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    directory, _, lock = opened(tmp_path)
    os.close(lock)
    with pytest.raises(FileNotFoundError), CrashNotice(directory.path, "blue"):
        (tmp_path / "gr\udcfcn").read_bytes()
    with pytest.raises(ValueError, match="a\0b"), CrashNotice(directory.path, "blue"):
        raise ValueError("a\0b \udcfc")
    assert storage.read(directory.path).crash.startswith("ValueError: a\0b \udcfc at ")


@for_each("home", ["/proc/pdctl", "/dev/null/home", "/sys/pdctl"])
@for_each("verb", [("launch", "2p1d", "--no-doctor"), ("ls",), ("status",), ("down",), ("logs",)])
def test_a_home_that_cannot_be(
    home: str, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_HOME", home)
    pdctl = Verb(capsys)
    code = pdctl(*verb)
    assert code == (4 if verb[0] == "launch" else 0 if verb[0] in ("ls", "down") else 5), pdctl.err
    assert "Traceback" not in pdctl.err
    if verb[0] == "launch":
        assert home in pdctl.err


@for_each("verb", [("launch", "2p1d", "--no-doctor"), ("ls",), ("status",), ("down",), ("logs",)])
@for_each("home", ["~nobody-of-this-name/x", "~nobody-of-this-name"])
def test_a_home_of_nobody(
    home: str, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_HOME", home)
    pdctl = Verb(capsys)
    assert pdctl(*verb) == 2
    assert pdctl.err.startswith(f"error: {home}: there is no user `nobody-of-this-name` here\n  fix: ")


def test_an_opened_run_needs_space_for_its_logs(tmp_path: Path) -> None:
    (tmp_path / "runs/blue").mkdir(parents=True)
    (tmp_path / "runs/blue/logs").symlink_to("/proc/self")
    with pytest.raises(StorageError, match="cannot write to /proc"):
        opened(tmp_path)


FULL_LATER = """
import dataclasses, os, sys
from pathlib import Path
from pdctl.launch import launched, storage
from pdctl.launch.run_record import RunOutcome, State
from tests.launch.test_storage import opened
root = Path.cwd()
directory, run, lock = opened(root)
directory.save(dataclasses.replace(run, state=State.STOPPED, outcome=RunOutcome("stopped by SIGTERM", 0)))
for spec in run.deployment.specs:
    directory.log(spec.name).write_text("a line\\n")
with open("fill", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 16))
    except OSError:
        pass
assert storage.storage_trouble(directory.path, directory.logs).startswith("logs are being lost"), "the disk is full"
print(repr(launched.find_launched(root, "blue").log_files().lost))
"""


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
def test_a_disk_that_is_full_now_says_nothing_of_a_run_that_is_over(tmp_path: Path) -> None:
    script = f'cd {tmp_path} && mount -t tmpfs -o size=1m none . && cd . && cd {tmp_path} && exec "$@"'
    argv = [*MOUNTS, "sh", "-c", script, "sh", sys.executable, "-c", FULL_LATER]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr


@for_each("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_write_into_a_directory_above_a_run(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        home = tmp_path / f"{umask:o}/state/home"
        os.close(opened(home).lock)
    finally:
        os.umask(before)
    for each in (home / "runs/blue", home / "runs", home, home.parent):
        assert not each.stat().st_mode & 0o022, each


def test_a_full_file_system_is_told_from_one_without_inodes(tmp_path: Path) -> None:
    assert user_files.room_advice(tmp_path / "not/there") == "free space there"


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
def test_without_inodes_it_is_files_that_are_to_be_deleted(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1m,nr_inodes=4 none $PWD && cd $PWD && touch a b c; exec "$@"'
    code = "from pdctl.user_files import room_advice; print(room_advice('a/b'))"
    argv = [*MOUNTS, "sh", "-c", f"cd {tmp_path} && {script}", "sh", sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "delete files there: it has space but no inodes left (df -i)\n", done.stderr


def test_what_is_kept_of_a_run_is_its_users_alone(tmp_path: Path) -> None:
    """A topology may hold an API key; the directory may have been made by somebody else, open to all."""
    file = tmp_path / "topology.yaml"
    file.write_text("open to all", encoding="utf-8")
    file.chmod(0o644)
    storage.save_whole(file, "args: {api-key: k}\n")
    assert file.read_text(encoding="utf-8") == "args: {api-key: k}\n"
    assert file.stat().st_mode & 0o777 == 0o600
