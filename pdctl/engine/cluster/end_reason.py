"""Why a process of an instance ended: it writes the reason into a pipe that its starter reads when it has ended.

A message over a socket may still be on its way when the exit code is known; what was written into a pipe is there. One
write of at most `MOST` bytes is never torn (POSIX, PIPE_BUF: 4096 on Linux, 512 on macOS).
"""

from __future__ import annotations

import contextlib
import os
import select

from pdctl.lifeline import is_pipe

ENV = "PDCTL_END_REASON_FD"
MOST = select.PIPE_BUF  # bytes


class EndReason:
    """The starter's end. `env` and `fds` go to `subprocess.Popen(env=…, pass_fds=…)`; then `started`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._write,)

    @property
    def env(self) -> dict[str, str]:
        return {ENV: str(self._write)}

    def started(self) -> None:
        os.close(self._write)

    def read(self) -> str:
        """The first reason told; empty where it told none. Called once, when the process has ended."""
        told = b""
        with contextlib.suppress(BlockingIOError):  # a child of it has the pipe, too
            told = os.read(self._read, MOST)
        os.close(self._read)
        return told.split(b"\n")[0].decode("utf-8", "replace")


def tell(reason: str) -> None:
    """Leave `reason` for the starter; a no-op for a process started by hand. Callable from any thread."""
    number = os.environ.get(ENV, "")
    if number.isdigit() and is_pipe(int(number)):
        line = " ".join(reason.split()).encode()[: MOST - 1] + b"\n"
        with contextlib.suppress(BrokenPipeError):  # nobody is left to read it
            os.write(int(number), line)
