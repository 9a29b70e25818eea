"""Check whether a run's directory can be written, and keep a notice that can be written even on a full disk.

notice.json gets its full size when the run is opened; later writes overwrite the same bytes, which needs no new space
on tmpfs, ext4 and xfs. (A copy-on-write file system may refuse it; `status` then finds out with a write of its own.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import syslog
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import StorageError
from pdctl.launch import run_record
from pdctl.launch.run_record import Process, Run, RunOutcome, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType


FILE = "notice.json"
SIZE = 4096  # bytes, one block
MESSAGE = 1200  # characters of one text in the notice
TRIAL = 8192  # bytes written as a trial: more than may be left in a block that is already in use
EVERY = 2.0  # seconds between two trials by the supervisor
LOST = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # nobody can write; EACCES may concern only this user


@dataclass(frozen=True, slots=True)
class Notice:
    """What the supervisor records when run.json cannot be written.

    `since`: when writing began to fail, in seconds since the epoch, 0: it works; `error`: why; `path`: where.

    `crash`: how the supervisor itself failed. `state` and what follows: how the run is, or how it ended, while run.json
    cannot be written; without the processes if they are too many for the reserved bytes.
    """

    since: float = 0.0
    error: str = ""
    path: str = ""
    crash: str = ""
    state: State | None = None
    outcome: RunOutcome | None = None
    supervisor: int | None = None
    supervisor_started: str = ""
    processes: tuple[Process, ...] = ()

    @property
    def lost(self) -> bool:
        return self.since > 0


def prepare(directory: Path) -> None:
    """Reserve the space. Raise OSError if there is none."""
    save_whole(directory / FILE, _encoded(Notice()))


def write(directory: Path, notice: Notice) -> bool:
    """Put `notice` into the reserved bytes; False if even that was refused."""
    with contextlib.suppress(OSError):
        handle = os.open(directory / FILE, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(handle, _encoded(notice), 0)
        finally:
            os.close(handle)
        return True
    return False


def read(directory: Path) -> Notice:
    """The notice; an empty one if there is none, or if it cannot be read."""
    try:
        return run_record.decode(Notice, json.loads(user_files.read_regular(directory / FILE, SIZE)))
    except (OSError, ValueError, RecursionError):
        return Notice()


def _encoded(notice: Notice) -> bytes:
    forms = (notice, dataclasses.replace(notice, processes=()))
    whole = (json.dumps(run_record.encode(form), separators=(",", ":")).encode() for form in forms)
    return next((data for data in whole if len(data) < SIZE), b"{}").ljust(SIZE - 1) + b"\n"


def end(directory: Path, run: Run) -> None:
    """Record in the notice how `run` ended, because run.json cannot be written."""
    write(directory, unsaved(read(directory), run))


def unsaved(notice: Notice, run: Run) -> Notice:
    """`notice` with what run.json should say of `run`."""
    outcome = run.outcome and dataclasses.replace(run.outcome, message=run.outcome.message[:MESSAGE])
    return dataclasses.replace(
        notice,
        state=run.state,
        outcome=outcome,
        supervisor=run.supervisor,
        supervisor_started=run.supervisor_started,
        processes=run.processes,
    )


def applied(run: Run, notice: Notice) -> Run:
    """`run` as the notice has it, if that is newer; an end that run.json has is final."""
    if notice.state is None or run.state in (State.STOPPED, State.FAILED):
        return run
    return dataclasses.replace(
        run,
        state=notice.state,
        outcome=notice.outcome,
        supervisor=notice.supervisor or run.supervisor,
        supervisor_started=notice.supervisor_started or run.supervisor_started,
        processes=notice.processes or run.processes,
    )


def try_out(folder: Path) -> None:
    """Write a few bytes to `folder` and remove them again. Raise OSError if that fails."""
    file = folder / f".trial.{os.getpid()}"
    try:
        file.write_bytes(b"\n" * TRIAL)
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def error_of_trial(folder: Path) -> OSError | None:
    """The error of `try_out`; None if it succeeds."""
    try:
        try_out(folder)
    except OSError as error:
        return error
    return None


def storage_trouble(directory: Path, logs: Path | None) -> str:
    """A sentence if a run's logs are being lost, by the supervisor's notice or a trial write to `logs`; else empty.

    `logs` is None for a run that is over: what the disk is like now says nothing of what was written then.
    """
    notice = read(directory)
    error = error_of_trial(logs) if logs is not None else None
    if logs is None or error is None or error.errno not in LOST:
        return sentence(notice) if notice.lost else ""
    if notice.lost:
        return sentence(notice)
    times = [log.stat().st_mtime for log in logs.glob("*.log")]
    last = time.strftime("%H:%M:%S", time.localtime(max(times))) if times else "never"
    return f"logs are being lost (last line written at {last}): {error.strerror} ({logs.resolve()})"


def save_whole(file: Path, data: bytes | str) -> None:
    """Replace `file`, or leave it as it was and raise OSError. Only the user may read it: it may hold keys."""
    user_files.write_whole(file, data, 0o600)


@contextlib.contextmanager
def written_to(directory: Path) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError that names the directory."""
    try:
        yield
    except OSError as error:
        raise refused(directory, error) from None


def refused(directory: Path, error: OSError) -> StorageError:
    fix = f"{user_files.room_advice(directory)}, or choose another place: PDCTL_HOME=DIR"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        fix = "choose a directory that this user can write: PDCTL_HOME=DIR"
    return StorageError(f"cannot write to {directory}: {error.strerror or error}", fix)


class DiskWatch:
    """Watches the supervisor's directories: reports once when writing begins to fail, and once when it works again."""

    def __init__(self, directory: Path, logs: Path) -> None:
        self._directory = directory
        self._logs = logs
        self._next = time.monotonic() + EVERY
        self._told = False  # `look` has said that writing fails
        self.notice = Notice()

    def look(self, unsaved: OSError | None) -> str:
        """What changed, in words; empty if nothing did. `unsaved`: why the last save of run.json failed, if it did."""
        if unsaved is None and time.monotonic() < self._next:
            return ""
        self._next = time.monotonic() + EVERY
        error = error_of_trial(self._logs)
        where = self._logs if error is not None else self._directory
        error = error or unsaved
        before, told = self.notice, self._told
        self._told = error is not None
        if error is not None and not told:
            self._note(error, where)
            return sentence(self.notice)
        if error is None and before.lost:
            self.notice = dataclasses.replace(before, since=0.0, error="", path="")
            write(self._directory, self.notice)
            return f"logs are written again after {time.time() - before.since:.0f} s" if told else ""
        return ""

    def keep(self, run: Run, error: OSError) -> None:
        """Keep what run.json should say in the notice, and why it cannot, until `saved`."""
        self.notice = unsaved(self.notice, run)
        self._note(error, self._directory)

    def _note(self, error: OSError, where: Path) -> None:
        if not self.notice.lost:
            why = error.strerror or str(error)
            self.notice = dataclasses.replace(self.notice, since=time.time(), error=why, path=str(where.resolve()))
        write(self._directory, self.notice)

    def saved(self) -> None:
        notice = self.notice
        self.notice = Notice(notice.since, notice.error, notice.path, notice.crash)
        write(self._directory, self.notice)


def sentence(notice: Notice) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(notice.since))
    return f"logs are being lost since {since}: {notice.error} ({notice.path})"


class CrashNotice:
    """Reports the exception that ends a supervisor: in the notice, in syslog, and on stderr as usual."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)):
            return
        last = traceback.extract_tb(trace)[-1:]
        place = f" at {last[0].filename}:{last[0].lineno}" if last else ""
        text = f"{type(error).__name__}: {error}{place}"[:MESSAGE]
        write(self._directory, dataclasses.replace(read(self._directory), crash=text))
        line = f"pdctl: the supervisor of run {self._name} failed: {text}".replace("\n", " ").replace("\0", " ")
        syslog.syslog(syslog.LOG_ERR, line.encode(errors="backslashreplace").decode())  # it refuses surrogates and NUL
