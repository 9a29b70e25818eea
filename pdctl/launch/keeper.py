"""Start one command and take responsibility for everything it starts: when pdctl ends, all of it ends.

    python -m pdctl.launch.keeper -- CMD…              for commands that do not watch the lifeline (pdctl.lifeline)
    python -m pdctl.launch.keeper --exec PID -- CMD…   for those that do: tie this process to PID, then exec CMD

The keeper waits for three things without threads or polling: the command's exit, signals to forward, and the lifeline.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from pdctl.launch import procfs
from pdctl.lifeline import ENV, inherited_fds

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # a signal that is ignored stays ignored across exec
SWEEP = 2.0  # seconds to keep killing a process tree that keeps forking


def main(argv: list[str]) -> NoReturn:
    if argv[:1] == ["--exec"] and argv[2:3] == ["--"] and argv[3:]:
        exec_tied_to_parent(argv[3:], int(argv[1]))
    if argv[:1] == ["--"] and argv[1:]:
        keep(argv[1:])
    sys.exit("usage: python -m pdctl.launch.keeper [--exec PARENT] -- COMMAND [ARGUMENT…]")


def exec_tied_to_parent(command: list[str], parent: int) -> NoReturn:
    """Replace this process with `command`, which the kernel kills as soon as `parent` is gone (Linux)."""
    procfs.die_with_parent()
    if os.getppid() != parent:  # the parent ended before die_with_parent took effect
        os._exit(1)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)  # the exit code of a shell for a command that cannot be found


def keep(command: list[str], *, ended: Callable[[int], None] | None = None, apart: bool = False) -> NoReturn:
    """Run `command`; call `ended` with its wait status once nothing of it is left. `apart`: in a session of its own."""
    procfs.adopt_orphans()
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the wake-up pipe carries the number
    lifelines = inherited_fds()
    for fd in lifelines:
        os.set_inheritable(fd, False)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        if apart:
            os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*FORWARDED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.environ.pop(
            ENV, None
        )  # the descriptor is not inherited; one of our own programs would take a closed one for pdctl's death
        exec_tied_to_parent(command, me)
    while True:
        ready = select.select([wakes, *lifelines], [], [])[0]
        if any(fd in ready for fd in lifelines):
            sweep()
            if not procfs.LINUX and os.getpgrp() == me:  # no /proc to walk: kill the process group, us included
                os.killpg(0, signal.SIGKILL)
            os._exit(1)
        for caught in os.read(wakes, 512):
            if caught != signal.SIGCHLD:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, caught)
        status = collect_children(child)
        if status is not None:
            sweep()
            if ended is not None:
                ended(status)
            leave(status)


def collect_children(child: int) -> int | None:
    """Reap every finished child, adopted ones too; return the wait status of `child` if it is among them, else None."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def sweep() -> None:
    """Kill every descendant of this process, whatever session or group it moved to."""
    deadline = time.monotonic() + SWEEP
    while time.monotonic() < deadline:
        below = procfs.descendants(os.getpid())
        if not below:
            break
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        collect_children(0)
        time.sleep(0.005)


def leave(status: int) -> NoReturn:
    """End as the command did, so that whoever waits for the keeper gets the command's own exit status."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has already left its core dump
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1:])
