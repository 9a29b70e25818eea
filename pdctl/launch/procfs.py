"""Identify processes and their relatives, from /proc on Linux, from `ps` elsewhere.

Only light modules of the standard library are imported here, because every keeper (one per foreign command) uses it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
LINUX = sys.platform == "linux"
STOPPED = "Tt"
ENDED = "ZX"  # states of a process that has ended and was not reaped


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that tell ancestry and identity; `start` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int


def stat(pid: int) -> Stat | None:
    """The process's entry; None if there is no such process, or only its zombie is left."""
    entry = _stat(pid)
    return entry if entry is not None and entry.state not in ENDED else None


def _stat(pid: int) -> Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may itself contain any character.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def processes() -> tuple[Stat, ...]:
    """Every living process this user can see; empty where there is no /proc."""
    if not LINUX:
        return ()
    found = (stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208 - names are all we need
    return tuple(entry for entry in found if entry is not None)


def identity(pid: int) -> str:
    """A string that distinguishes this process from a later one with the same pid; empty if it is gone."""
    if LINUX:
        entry = stat(pid)
        return f"{_boot()}-{entry.start}" if entry else ""
    import subprocess

    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    state, _, started = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(started.split())


def is_alive(pid: int | None, started: str) -> bool:
    """Whether the process with this pid and identity (`started`) still runs."""
    return pid is not None and bool(started) and identity(pid) == started


def descendants(root: int) -> tuple[int, ...]:
    """The pids of all descendants, nearest generation first."""
    everyone = processes()
    found: list[int] = []
    level = {root}
    while level:
        level = {entry.pid for entry in everyone if entry.parent in level}
        found.extend(sorted(level))
    return tuple(found)


def session(leader: int) -> tuple[int, ...]:
    """Pids of the living processes in the session that `leader` started, whether or not the leader still lives."""
    return tuple(entry.pid for entry in processes() if entry.session == leader)


def stopped(leader: int) -> tuple[int, ...]:
    """Processes of that session that are stopped: by SIGSTOP, Ctrl-Z or a debugger."""
    return tuple(entry.pid for entry in processes() if entry.session == leader and entry.state in STOPPED)


def is_stopped(pid: int) -> bool:
    entry = stat(pid) if LINUX else None
    return entry is not None and entry.state in STOPPED


def zombies(leader: int) -> tuple[int, ...]:
    """Processes of that session that have ended and were not reaped."""
    if not LINUX:
        return ()
    found = (_stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208
    return tuple(entry.pid for entry in found if entry and entry.session == leader and entry.state in ENDED)


def commands() -> Iterator[tuple[int, int, list[str]]]:
    """Pid, user id and argv of every process that this user can see; nothing where there is no /proc."""
    for entry in processes():
        with contextlib.suppress(OSError):  # it has just exited
            owner, raw = (PROC / str(entry.pid)).stat().st_uid, (PROC / str(entry.pid) / "cmdline").read_bytes()
            yield entry.pid, owner, raw.decode("utf-8", errors="replace").split("\0")


def command_line(pid: int) -> str:
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", errors="replace").strip()


def variable(pid: int, name: str) -> str:
    """An environment variable as a process of this user was started with it; empty if unset or unknown."""
    try:
        block = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{name}=".encode()
    found = (entry[len(prefix) :] for entry in block.split(b"\0") if entry.startswith(prefix))
    return next(found, b"").decode("utf-8", errors="replace")


def _boot() -> str:
    """The boot id, part of every identity because start times count ticks since boot."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that all stay reachable. Linux only."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_with_parent() -> None:
    """Ask the kernel for a SIGKILL when the parent's starting thread ends; survives exec. Linux only."""
    _prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def _prctl(option: int, value: int) -> None:
    if not LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
