"""One child process: started in its own session and tied to this process; its end is posted once, its group emptied."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pdctl import program
from pdctl.http_auth import masked
from pdctl.launch import procfs
from pdctl.launch.ending_reasons import in_words
from pdctl.launch.run_record import Exit
from pdctl.launch.runtime import Exited
from pdctl.log_lines import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.launch.deployment import Spec
    from pdctl.lifeline import Lifeline

KEEPER = "pdctl.launch.keeper"
COLLECT = 2.0  # seconds for a killed session to be gone
RUN = "PDCTL_RUN"  # environment variable with the run's name, set for everything a run starts


class ChildProcess:
    """`terminate` asks the process to exit; `kill` kills its whole session. Both do nothing once it has ended."""

    def __init__(self, spec: Spec, generation: int, popen: subprocess.Popen[bytes], log: Path, start: int) -> None:
        self.spec = spec
        self._log = log
        self.generation = generation
        self.pid = popen.pid
        self.started = procfs.identity(popen.pid)
        self.since = time.time()
        self.log_start = start
        self.exit: Exit | None = None
        self._popen = popen
        self._killed = False  # by this object
        self._asked = False
        self._guard = threading.Lock()  # a pid may be signalled only while it cannot have been reused

    @property
    def words(self) -> str:
        return f"pid {self.pid}"

    def watch(self, post: Callable[[Exited], None]) -> None:
        """Call `post` once, when the process has ended. Whatever it left in its session is killed first."""

        def wait() -> None:
            exit = self._await()
            with contextlib.suppress(OSError):  # the run's directory may be gone
                close_generation(self._log, self.spec, self.generation, exit)
            post(Exited(self.spec.name, self.generation, exit))

        threading.Thread(target=wait, name=f"wait {self.spec.name}", daemon=True).start()

    def terminate(self) -> None:
        with self._guard:
            if self.exit is None and not self._ended():
                self._asked = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        with self._guard:
            if self.exit is None:
                self._killed = not self._ended()
                self._kill_session()

    def _ended(self) -> bool:
        """Whether it has ended by itself, and `watch` has yet to see it: then no order is the reason of its end."""
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _kill_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM when only a zombie is left
            os.killpg(self.pid, signal.SIGKILL)
        for pid in procfs.session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _await(self) -> Exit:
        if hasattr(os, "waitid"):
            # WNOWAIT leaves the zombie, so the pid cannot be reused while the session is cleared.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()  # macOS before Python 3.13
        at = time.time()
        with self._guard:
            self._kill_session()
            status = self._popen.wait()
            number = max(-status, 0)
            ours = self._killed and number == signal.SIGKILL
            self.exit = Exit(max(status, 0), number, at, ours=ours, asked=self._asked)
        collect(self.pid)
        clear_sockets(self.pid)
        return self.exit


def collect(session: int) -> None:
    """Reap the zombies of a killed session: this process adopted them when the leader died, so nobody else can."""
    deadline = time.monotonic() + COLLECT
    while time.monotonic() < deadline:
        alive = procfs.session(session)
        dead = [pid for pid in procfs.zombies(session) if not _reaped(pid)]  # threads of some may still be exiting
        if not alive and not dead:
            return
        time.sleep(0.01)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # its own parent reaped it first
        return True


def clear_sockets(pid: int) -> None:
    """Remove the socket directory of an engine that was killed before it could do so (pdctl/engine/__main__.py)."""
    bases = {"/tmp"}
    with contextlib.suppress(FileNotFoundError):  # nothing can be written anywhere: the engine made no directory there
        bases.add(tempfile.gettempdir())
    for base in bases:
        for left in Path(base).glob(f"pdctl-{pid}-*"):
            shutil.rmtree(left, ignore_errors=True)


def start(spec: Spec, generation: int, log: Path, lifeline: Lifeline, environ: Mapping[str, str]) -> ChildProcess:
    """Start `spec`, its output appended to `log`. Main thread only: the kernel ties a child to the forking thread."""
    begin = open_generation(log, spec, generation)
    own = program.served_environment() if speaks_lifeline(spec.argv) else {}
    environment = {**environ, **own, **dict(spec.env), **lifeline.env, "PYTHONUNBUFFERED": "1"}
    with _output(log) as output:
        popen = subprocess.Popen(
            wrapped(spec.argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=lifeline.fds,
            start_new_session=True,
        )
    return ChildProcess(spec, generation, popen, log, begin)


def _output(log: Path) -> BinaryIO:
    """The output file of a process; /dev/null if its log cannot be opened, because the process can serve without it."""
    try:
        return log.open("ab")
    except OSError:
        return open(os.devnull, "ab")  # noqa: PTH123


def wrapped(argv: tuple[str, ...]) -> list[str]:
    """The command as really started: our own programs watch the lifeline themselves, others run under a keeper."""
    keeper = program.command(KEEPER)
    if not speaks_lifeline(argv):
        return [*keeper, "--", *argv]
    if procfs.LINUX:
        return [*keeper, "--exec", str(os.getpid()), "--", *argv]
    return list(argv)


def speaks_lifeline(argv: tuple[str, ...]) -> bool:
    return program.module_of(argv).split(".")[0] == "pdctl"


def open_generation(log: Path, spec: Spec, generation: int) -> int:
    """Write the line that opens this generation's part of the log; return the byte offset at which that part begins."""
    begin = 0
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as output:  # a full disk
        begin = output.tell()
        output.write(f"[{stamp()}] pdctl: {spec.name} generation {generation}: {shlex.join(masked(spec.argv))}\n")
    return begin


def close_generation(log: Path, spec: Spec, generation: int, exit: Exit) -> None:
    """Write how this generation ended: a killed process cannot log that itself, and trace-room reads only the logs."""
    with log.open("a", encoding="utf-8") as output:
        output.write(f"[{stamp()}] pdctl: {spec.name} generation {generation} {in_words(exit)}\n")
