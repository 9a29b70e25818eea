"""Every error pdctl raises on purpose, and the exit code each one means.

    PdctlError                      exit 1
    ├── UsageError                  exit 2   a flag or argument that cannot be
    ├── TopologyError               exit 2   a topology file that cannot be (carries Diagnostics)
    ├── InfeasibleError             exit 1   a shape SGLang would refuse (carries Problems)
    ├── MissingExtraError           exit 2   an optional part is not installed
    ├── NotProbedError              exit 4   too little could be reached to decide
    ├── StorageError                exit 4   a directory of pdctl's own cannot be read or written
    ├── NotFoundError               exit 5   a run, room or instance that does not exist
    ├── NotReadyError               exit 8   still starting when the deadline passed
    └── LaunchError                 exit 1   a process could not be started, or died

Whoever raises names the place and the fix: `message` says what is wrong and where, `fix` is one command or one edit.
"""

from __future__ import annotations

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
    """`diagnostics`: every problem found, as pdctl.topology.diagnostic has them (this module imports nothing)."""

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


class NotFoundError(PdctlError):
    exit_code = ExitCode.NOT_FOUND


class NotReadyError(PdctlError):
    exit_code = ExitCode.NOT_READY


class LaunchError(PdctlError):
    exit_code = ExitCode.FINDINGS
