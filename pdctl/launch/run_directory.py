"""The directory of a run, which holds its record: what was started, by whom, where its logs are, how it ended.

$PDCTL_HOME | $XDG_STATE_HOME/pdctl | ~/.local/state/pdctl
  runs/NAME/run.json        schema pdctl.run/1, replaced as a whole at every change
           roles.json       instances that switched roles while running (turned_instances.py)
           plan.json        the output of `pdctl plan`
           topology.yaml    its topology files and --set values, resolved
           deployment-secret  mode 0600, present while the run lives if it has one (credentials.py)
           notice.json      what cannot be saved in run.json on a full disk (storage.py)
           lock             held (flock) by the supervisor for as long as it lives
           logs/INSTANCE.log, logs/supervisor.log
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import NotFoundError, PdctlError, UsageError
from pdctl.launch import log_tail, storage
from pdctl.launch.log_tail import LogTail
from pdctl.launch.run_record import GONE, LARGEST, OVER, SCHEMA, Run, RunOutcome, State, decode, encode, left_alive
from pdctl.launch.turned_instances import read_roles, with_roles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


LOCK = "lock"
RECORD = "run.json"
KEPT = 5  # how many earlier runs of the same name are kept
SUPERVISOR = "pdctl.launch"  # the module of a detached run's supervisor; the run's directory follows it


def home(environ: Mapping[str, str]) -> Path:
    return user_files.state_directory(environ)


class RunDir:
    """One run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"

    @classmethod
    def of(cls, root: Path, name: str) -> RunDir:
        return cls(root / "runs" / name)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def look_into_logs(self) -> None:
        """Raise StorageError if this user may not read the log folder: its files would otherwise seem missing."""
        try:
            with os.scandir(self.logs):
                pass
        except FileNotFoundError:
            pass
        except OSError as error:
            raise user_files.unreadable(self.logs.resolve(), error) from None

    def current_log(self, name: str) -> Path:
        """The log file of the latest generation."""
        return list(log_tail.parts(self.log(name)))[-1]

    def tails(self, run: Run) -> dict[str, LogTail]:
        """A reader for every process's log."""
        return {process.name: LogTail(self.log(process.name)) for process in run.processes}

    def ends(self, run: Run) -> dict[str, LogTail]:
        """A reader for every process's log, starting at the log's current end."""
        sizes = {process.name: self.log(process.name).stat().st_size for process in run.processes}
        return {name: LogTail(self.log(name), size) for name, size in sizes.items()}

    def create(self, logs: Path | None = None) -> None:
        """Prepare the directory for a new run; an earlier run of this name is moved to NAME.N.

        `logs`: keep the logs in that directory, to which the run's own `logs` becomes a link.
        """
        self._set_aside()
        if logs is not None:
            logs.parent.mkdir(parents=True, exist_ok=True)
            self.logs.unlink(missing_ok=True)
            self.logs.symlink_to(_made(logs))
        if not self.logs.is_symlink():
            self.logs.mkdir(exist_ok=True, mode=0o700)

    def _set_aside(self) -> None:
        """Move everything but the lock to NAME.N. N only grows, so that a name that somebody noted stays valid.

        If somebody else made `logs` a link, the link and its target stay.
        """
        stay = {LOCK} if self._logs_are_ours else {LOCK, self.logs.name}
        kept = [entry for entry in self.path.iterdir() if entry.name not in stay]
        if not kept:
            return
        earlier = earlier_runs(self.path)
        aside = self.path.with_name(f"{self.path.name}.{1 + max(earlier, default=0)}")
        moves = {f"{self.path}/": f"{aside}/"}
        home = _made(self.path.resolve().with_name(aside.name), 0o700)
        logs = self.logs.resolve() if self.logs.is_symlink() and self._logs_are_ours and self.logs.exists() else None
        moved = _free(logs.with_name(aside.name)) if logs is not None else None
        if logs is not None:
            moves[f"{logs}/"] = f"{moved}/"
        try:  # what may fail on a full disk comes before anything is moved
            settled = self._settled(home, aside.name, moves)
            if self.path.is_symlink():
                aside.symlink_to(home)
        except OSError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        if logs is not None and moved is not None:
            logs.rename(moved)
            self.logs.unlink()
            self.logs.symlink_to(moved)
        for entry in kept:
            if settled and entry.name == RECORD:
                entry.unlink()
            else:
                entry.rename(home / entry.name)
        for number in sorted(earlier)[: max(0, len(earlier) + 1 - KEPT)]:
            RunDir(earlier[number]).remove()

    @property
    def _logs_are_ours(self) -> bool:
        """Whether `logs` is a directory, or a link to one that `create` made."""
        return not self.logs.is_symlink() or self.logs.readlink().name.partition(".")[0] == self.path.name

    def _settled(self, home: Path, name: str, moves: Mapping[str, str]) -> bool:
        """Save to `home` the record of this run under its new name, with the new paths in its sentences, and that it is
        over. Return False if there is no record that can be read. Raise OSError if it cannot be saved.
        """
        try:
            run = dataclasses.replace(self._read(), name=name, directory=str(home))
        except PdctlError:
            return False
        if run.state not in OVER:
            outcome = RunOutcome(f"{GONE} when the next run of its name began", 1)
            run = dataclasses.replace(run, state=State.FAILED, outcome=outcome)
        RunDir(home).save(_with_paths(run, moves))
        return True

    def remove(self) -> None:
        """Delete the run and its logs, wherever they are, unless a process of it still runs."""
        with contextlib.suppress(PdctlError):
            if self._read().survivors:
                return
        for folder in (self.logs, self.path):
            if folder.is_symlink():
                shutil.rmtree(folder.resolve(), ignore_errors=True)
        if self.path.is_symlink():
            self.path.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def keep(self, name: str, text: str) -> None:
        """Save a document beside run.json. Raise StorageError if that fails."""
        with storage.written_to(self.path):
            storage.save_whole(self.path / name, text.rstrip() + "\n")

    def lock(self) -> int | None:
        """A file descriptor that holds this run's lock; None if another process holds it."""
        user_files.make_directories(self.path.parent)
        self.path.mkdir(exist_ok=True, mode=0o700)
        handle = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    def unrecorded(self) -> str:
        """What to say of a launch that failed before run.json was written; empty if it was refused or still opens."""
        try:
            if set(os.listdir(self.path)) <= {LOCK}:  # noqa: PTH208 - names are all we need
                return ""
            lock = self.lock()
        except OSError:
            return ""
        if lock is None:
            return ""
        os.close(lock)
        error = storage.error_of_trial(self.path)
        now = f" (now: {error.strerror})" if error is not None else ""
        what = f"a launch of `{self.path.name}` failed before it was recorded: no run.json in {self.path}{now}"
        return f"{what}; if nothing of that run is left: rm -r {shlex.quote(str(self.path))}"

    def load(self) -> Run:
        """The run. Raise PdctlError if there is none, if it cannot be read, or if it is that of another directory."""
        run = self._read()
        if run.name not in (self.path.name, self.path.resolve().name):
            known = f"{self.path / 'run.json'} is the record of a run {run.name!r:.80}, not of `{self.path.name}`"
            lives, command = left_alive(run)
            raise PdctlError(
                f"{known}: the directory was copied or renamed{lives and f'; {lives} (to end it: {command})'}",
                f"give the directory the name in its record, or, if it is a copy: rm -r {shlex.quote(str(self.path))}",
            )
        return run

    def owns(self, run: Run) -> bool:
        """Whether `run` was recorded in this directory, not in one that this is a copy of or was moved from."""
        return run.directory in ("", str(self.path.resolve())) or _is_same(self.path, run.directory)

    def _read(self) -> Run:
        file = self.path / RECORD
        try:
            value = json.loads(user_files.read_regular(file, LARGEST))
            run = storage.applied(decode(Run, value), storage.read(self.path))
            return dataclasses.replace(run, deployment=with_roles(run.deployment, read_roles(self.path)))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"no run.json in {self.path}", "pdctl ls") from None
        except OSError as error:
            raise user_files.unreadable(file, error) from None
        except (ValueError, RecursionError) as error:
            raise PdctlError(
                f"{file} cannot be read: {error}", f"if nothing of that run is left: rm -r {self.path}"
            ) from None

    def look(self) -> Run:
        """`load` from outside the supervisor: `gone` says whether the supervisor had exited before the file was read.

        A supervisor records how the run ended just before it exits. Reading first and checking later would mistake a
        run that ended normally in between for one whose supervisor died.
        """
        run = self.load()
        if run.state in OVER or run.alive:
            return dataclasses.replace(run, gone=False)
        again = self.load()
        return dataclasses.replace(again, gone=not again.alive)

    def save(self, run: Run) -> None:
        """Save run.json atomically: readers in other shells never see half a file."""
        text = json.dumps({"schema": SCHEMA, **as_document(run)}, indent=1)
        storage.save_whole(self.path / RECORD, text + "\n")

    def save_end(self, run: Run) -> None:
        """Record how `run` ended, even on a full disk."""
        try:
            self.save(run)
        except OSError:
            storage.end(self.path, run)


def _with_paths(run: Run, moves: Mapping[str, str]) -> Run:
    """`run` with the paths in its outcome and its events replaced, as `moves` says for their beginnings."""

    def moved(text: str) -> str:
        for old, new in moves.items():
            text = text.replace(old, new)
        return text

    outcome = run.outcome
    if outcome is not None:
        outcome = dataclasses.replace(outcome, message=moved(outcome.message), fix=moved(outcome.fix))
    events = tuple(dataclasses.replace(event, detail=moved(event.detail)) for event in run.events)
    return dataclasses.replace(run, outcome=outcome, events=events)


def earlier_runs(directory: Path) -> dict[int, Path]:
    """N → directory NAME.N of each earlier run of this name."""
    found = directory.parent.glob(f"{directory.name}.*")
    numbers = {each: each.name.removeprefix(f"{directory.name}.") for each in found}
    return {int(number): each for each, number in numbers.items() if number.isdecimal()}


def _is_same(one: Path, other: str) -> bool:
    """Whether both paths are the same directory, which another mount may show at another place."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _made(folder: Path, mode: int = 0o777) -> Path:
    """An empty directory: `folder`, or one with a number appended if `folder` is not empty."""
    if not folder.is_dir() or any(folder.iterdir()):
        folder = _free(folder)
        folder.mkdir(mode=mode)
    return folder


def _free(path: Path) -> Path:
    """`path`, or with a number appended to its name if it already exists."""
    names = (path, *(path.with_name(f"{path.name}.{number}") for number in range(2, 1000)))
    return next(each for each in names if not os.path.lexists(each))


def as_document(value: object) -> dict[str, object]:
    document = encode(value)
    assert isinstance(document, dict)
    return document


def check_name(name: str, fix: str = "--name my-run") -> str:
    """`name`, if it is a DNS label, because it names directories, jobs and Kubernetes objects; else UsageError."""
    plain = name.replace("-", "").isalnum() and name.isascii() and name == name.lower()
    if not plain or name[0] == "-" or name[-1] == "-" or len(name) > 63:
        raise UsageError(f"run name `{name}` cannot be: use lower-case letters, digits and `-` (at most 63)", fix)
    return name
