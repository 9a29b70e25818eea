"""Paths users wrote, where pdctl keeps its runs, and files that somebody names: read up to a limit, written whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shlex
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO


def expanded(path: str) -> Path:
    """`~` and `~USER` resolved. Raise UsageError where that home is unknown: no such user, or a bare uid."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0][1:]
        who = f"there is no user `{user}` here" if user else "HOME is not set and this user has no home directory"
        raise UsageError(f"{path}: {who}", "write the whole path, or set HOME or PDCTL_HOME=DIR") from None


def state_directory(environ: Mapping[str, str]) -> Path:
    """$PDCTL_HOME | $XDG_STATE_HOME/pdctl | ~/.local/state/pdctl"""
    if environ.get("PDCTL_HOME"):
        return expanded(environ["PDCTL_HOME"])
    return expanded(environ.get("XDG_STATE_HOME") or "~/.local/state") / "pdctl"


def room_advice(path: Path | str) -> str:
    """What to do about a full file system: one may lack space, or inodes while `df` shows space."""
    for each in (Path(path), *Path(path).absolute().parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(each)
            if found.f_files and not found.f_favail and found.f_bavail:
                return "delete files there: it has space but no inodes left (df -i)"
            return "free space there"
    return "free space there"


def make_directories(path: Path, mode: int = 0o755) -> None:
    """Create a directory and its parents, none of them for others to write into, whatever the umask. Raise OSError."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=mode if each == path else 0o755)


def temporary_directory() -> str:
    """Where temporary files go. Raise StorageError where none can be written, as in a container without a /tmp."""
    import tempfile  # late: small logs need none

    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:  # it lists the directories it tried
        raise StorageError(
            str(error.strerror), "set TMPDIR to a directory that can be written to: TMPDIR=DIR"
        ) from None


OPENED = 5.0  # seconds in which some process must open the other end of a named pipe
LOOK = 0.02  # seconds between attempts to open a named pipe that nobody reads yet
PATIENCE = 30.0  # seconds without a byte
CHUNK = 1 << 20


def read(path: str | Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes, so that the caller sees when there is more. Raise OSError, as `chunks` does."""
    data = bytearray()
    for chunk in chunks(path):
        data += chunk
        if len(data) > limit:
            break
    return bytes(data[: limit + 1])


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a file of pdctl's own. Raise OSError, and ValueError if it is a pipe or device, or too large.

    A pipe put in its place would keep every verb waiting, and a device may never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit >> 20} MiB")
    return data


def chunks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file, pipe or device. Raise OSError, also where nobody writes to a pipe."""
    # Without O_NONBLOCK the opening of a FIFO waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        patience = OPENED
        while True:
            ready = poll.poll(patience * 1000)
            if not ready and patience == PATIENCE:
                raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to it within {PATIENCE:g} s", str(path))
            patience = PATIENCE
            try:
                data = os.read(handle, CHUNK)
            except BlockingIOError:  # a process has it open and writes nothing
                continue
            if not data and not ready:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"no process opened this pipe to write to it within {OPENED:g} s", str(path)
                )
            if not data:
                return
            yield data
    finally:
        os.close(handle)


def standard_input() -> BinaryIO:
    """What `-` means. Raise UsageError where the caller closed it, as cron does: it is not an empty file."""
    try:
        closed = sys.stdin is None or fcntl.fcntl(sys.stdin.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except (OSError, ValueError):  # it is no file
        closed = False
    if closed:
        raise UsageError("`-` means standard input, and there is none", "pipe something into it, or give a path")
    return sys.stdin.buffer


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place once all is written; after an error `path` is as it was. Raise OSError.

    Half a file would take the place of the whole one, and the space that others need. A link stays a link, a file
    keeps its mode unless `mode` says another, and what is no file (a pipe, /dev/null) is written to.
    """
    path = path.resolve()
    found = path.stat().st_mode if path.exists() else 0
    if found and not stat.S_ISREG(found):
        with os.fdopen(_opened_for_writing(path), "wb") as out:
            yield out
        return
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode or 0o666), "w+b") as out:
            if found and mode is None:
                os.fchmod(out.fileno(), stat.S_IMODE(found))
            yield out
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _opened_for_writing(path: Path) -> int:
    """A descriptor of a pipe or device. Raise OSError, also for a pipe that no process reads within OPENED."""
    deadline = time.monotonic() + OPENED
    while True:
        try:  # without O_NONBLOCK the opening of a FIFO waits for a reader
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > deadline:
                why = f"no process opened this pipe to read from it within {OPENED:g} s"
                raise TimeoutError(errno.ETIMEDOUT, why, str(path)) from None
            time.sleep(LOOK)
            continue
        os.set_blocking(handle, True)
        return handle


def write_whole(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Replace `path` by `data`, or leave it as it was and raise OSError. Text is UTF-8."""
    with replacing(path, mode) as out:
        out.write(data.encode() if isinstance(data, str) else data)


def unwritable(what: str, error: OSError) -> PdctlError:
    """The error for a file that the user named and that cannot be written; `what` names it."""
    message = f"{what}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(message, "free space there, or name a file on another disk")
    return UsageError(message, "name a file in a directory that can be written")


def unreadable(path: Path | str, error: OSError) -> StorageError:
    """What to say where reading `path` was refused: whose it is, if that is another user's."""
    what = f"cannot read {path}: {(error.strerror or str(error)).lower()}"
    if error.errno not in (errno.EACCES, errno.EPERM):
        return StorageError(what, "check that the disk it is on can be read")
    return StorageError(what, as_owner(path) or f"check the permissions of {path}")


def as_owner(path: Path | str, command: str = "pdctl …", home: Path | None = None) -> str:
    """How to run `command` as the user who owns `path`; empty if that is the one who asks.

    `home`: the state directory that user is to look in; None: the current one, if `path` is in it.
    """
    owner = other_owner(path)
    if not owner:
        return ""
    if home is None:
        with contextlib.suppress(UsageError):
            ours = state_directory(os.environ).absolute()
            if any(Path(path).absolute().is_relative_to(each) for each in (ours, ours.resolve())):
                home = ours
    place = f"env PDCTL_HOME={shlex.quote(str(home))} " if home is not None else ""
    return f"run as its owner: sudo -u {shlex.quote(owner)} {place}{command}"


def other_owner(path: Path | str) -> str:
    """The user who owns the nearest part of `path` that can be seen, if that is not the one who asks."""
    import pwd  # late: only a refusal needs it

    for each in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):
            uid = each.stat().st_uid
            if uid == os.geteuid():
                return ""
            with contextlib.suppress(KeyError):
                return pwd.getpwuid(uid).pw_name
            return f"#{uid}"
    return ""
