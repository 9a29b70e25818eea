"""Every error pdctl raises on purpose, and the exit code each one means.

    PdctlError                      exit 1
    ├── UsageError                  exit 2   a flag or argument that is not valid
    ├── TopologyError               exit 2   a topology file that is not valid (carries Diagnostics)
    ├── InfeasibleError             exit 1   a shape SGLang would refuse (carries Problems)
    ├── MissingExtraError           exit 2   an optional part is not installed
    ├── NotProbedError              exit 4   too little could be reached to decide
    ├── StorageError                exit 4   a directory of pdctl's own cannot be read or written
    ├── LimitError                  exit 4   a limit of this machine, shell or container: memory, threads, open files
    ├── NotFoundError               exit 5   a run, room or instance that does not exist
    ├── NotReadyError               exit 8   still starting when the deadline passed
    └── LaunchError                 exit 1   a process could not be started, or died

Every error names the place and the fix: `message` says what is wrong and where, `fix` is one command or one edit.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum


class ExitCode(IntEnum):
    """The same in every output format. 130 and 143 (signals) are re-raised, never returned."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    BUG = 3
    NOT_PROBED = 4
    NOT_FOUND = 5
    NOT_READY = 8


class PdctlError(Exception):
    """Base of every expected error: printed as one message and one fix, never as a traceback."""

    exit_code: ExitCode = ExitCode.FINDINGS

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(PdctlError):
    exit_code = ExitCode.USAGE


class TopologyError(PdctlError):
    """`diagnostics`: every problem found, as `pdctl.topology.diagnostic` defines them (this module imports nothing)."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, fix: str = "", diagnostics: tuple[object, ...] = ()) -> None:
        super().__init__(message, fix)
        self.diagnostics = diagnostics


class InfeasibleError(PdctlError):
    exit_code = ExitCode.FINDINGS


class MissingExtraError(PdctlError):
    exit_code = ExitCode.USAGE


class NotProbedError(PdctlError):
    exit_code = ExitCode.NOT_PROBED


class StorageError(PdctlError):
    exit_code = ExitCode.NOT_PROBED


class LimitError(PdctlError):
    exit_code = ExitCode.NOT_PROBED


class NotFoundError(PdctlError):
    exit_code = ExitCode.NOT_FOUND


class NotReadyError(PdctlError):
    exit_code = ExitCode.NOT_READY


class LaunchError(PdctlError):
    exit_code = ExitCode.FINDINGS


_NO_THREADS = (
    "no more threads or processes can be started",
    "raise the limit of this shell (ulimit -u, or ulimit -v, which stacks of threads count against) or of this "
    "container (pids.max)",
)


def limit_reached(error: BaseException) -> LimitError | None:
    """The limit of this machine, shell or container that `error` stands for; None for any other error.

    Such a limit is nobody's bug and says nothing about the server, file or run in question.
    """
    if isinstance(error, LimitError):
        return error
    number = error.errno if isinstance(error, OSError) else 0
    if number in _LIMITS:
        return LimitError(*_LIMITS[number])
    # A write that would block has the same errno but another text.
    no_fork = number == errno.EAGAIN and isinstance(error, OSError) and error.strerror == os.strerror(errno.EAGAIN)
    if no_fork or (isinstance(error, RuntimeError) and str(error) == "can't start new thread"):
        return LimitError(*_NO_THREADS)
    no_map = isinstance(error, ImportError) and "failed to map segment" in str(error)
    # Libraries keep the system's words alone: `unable to mmap 512 bytes …: Cannot allocate memory (12)`.
    no_map = no_map or (isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY))
    return LimitError(*_LIMITS[errno.ENOMEM]) if no_map or isinstance(error, MemoryError) else None


def limit_told(line: str) -> LimitError | None:
    """The limit that a native library tells of before it aborts; None if the line tells of none."""
    if os.strerror(errno.EAGAIN) in line and "thread" in line:
        return LimitError(*_NO_THREADS)
    if os.strerror(errno.EFBIG) in line:
        return LimitError("a file would be larger than the limit", "raise the limit of this shell: ulimit -f unlimited")
    if any(text in line for text in NO_MEMORY):
        return LimitError(*_LIMITS[errno.ENOMEM])
    return None


class limits_named:  # as contextlib's, which this module is too early to import
    """In a `with`: raise LimitError, with the error in its message, for an error that stands for a limit."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reached = None if error is None or isinstance(error, LimitError) else limit_reached(error)
        if reached is not None:
            raise LimitError(f"{reached.message} ({type(error).__name__}: {error})", reached.fix) from error


def memory_used_up() -> LimitError | None:
    """The limit of this process's address space, if it has come close to it; None if not, or if there is none.

    There Python raises what it happens to have at hand, a SystemError for example, in place of a MemoryError.
    """
    most, peak = _of_process("limits", b"Max address space"), _of_process("status", b"VmPeak:")
    near = most is not None and peak is not None and most - (peak << 10) < STEP
    return LimitError(*_LIMITS[errno.ENOMEM]) if near else None


def _of_process(file: str, name: bytes) -> int | None:
    """A number that Linux tells of this process, asked for without an import or a large buffer."""
    try:
        handle = os.open(f"/proc/self/{file}", os.O_RDONLY)
    except OSError:
        return None
    try:
        words = os.read(handle, PAGE).partition(name)[2].split(None, 1)
    finally:
        os.close(handle)
    return int(words[0]) if words and words[0].isdigit() else None


PAGE = 4096  # bytes of such a file: it is shorter
NO_MEMORY = ("Cannot allocate memory", "can't allocate memory")  # of the C library; of torch's CPU allocator
STEP = 8 << 20  # bytes; what a library or a table may ask for at once is less
_LIMITS = {
    errno.EMFILE: ("too many open files in this process", "raise the limit of this shell: ulimit -n 65536"),
    errno.ENFILE: ("too many open files on this machine", "raise the limit: sysctl fs.file-max"),
    errno.ENOMEM: (
        "out of memory",
        "free memory, or raise the limit of this shell (ulimit -v unlimited) or of this container (memory.max)",
    ),
}
