"""A pipe that ties a process to the one that started it, so that nothing outlives a SIGKILL of its parent.

The starter keeps the write end and passes the read end down to every process of the tree (children and grandchildren).
When the starter dies, in whatever way, the kernel closes the write end; every reader sees end-of-file and leaves.
Works on Linux and macOS alike; needs no cooperation from a signal handler.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import TYPE_CHECKING

from pdctl.errors import limit_reached

if TYPE_CHECKING:
    from collections.abc import Callable

ENV = "PDCTL_LIFELINE_FD"


class Lifeline:
    """The starter's end. `env` and `fds` go to `subprocess.Popen(env=…, pass_fds=…)`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()  # both close-on-exec: only `pass_fds` hands the read end down

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._read,)

    @property
    def env(self) -> dict[str, str]:
        return {ENV: str(self._read)}

    def cut(self) -> None:
        """End every process of the tree now, as a death of this process would."""
        os.close(self._write)


def inherited_fds() -> tuple[int, ...]:
    """The read end this process was given, to hand on to its own children; empty when started by hand."""
    value = os.environ.get(ENV, "")
    return (int(value),) if value.isdigit() and is_pipe(int(value)) else ()


def is_pipe(fd: int) -> bool:
    """Whether `fd` is still the pipe; a wrapper such as sudo may have closed it and kept the variable."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (OSError, OverflowError):
        return False


def hold(on_cut: Callable[[], None] | None = None) -> None:
    """Leave (exit 1, at once) as soon as the starter is gone. A no-op for a process started by hand.

    Where no thread can be started, say so and leave (exit 4): an unwatched process could outlive its starter.
    """
    for fd in inherited_fds():

        def wait(fd: int = fd) -> None:
            try:
                while os.read(fd, 1):
                    pass
            except OSError:
                pass
            try:
                if on_cut is not None:
                    on_cut()
            finally:
                os._exit(1)

        try:
            threading.Thread(target=wait, name="lifeline", daemon=True).start()
        except RuntimeError as error:
            reached = limit_reached(error)
            if reached is None:
                raise
            if on_cut is not None:
                on_cut()
            sys.stderr.write(f"error: {reached.message}\n  fix: {reached.fix}\n")
            sys.exit(reached.exit_code)
