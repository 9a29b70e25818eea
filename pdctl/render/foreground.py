"""Show a launch: its start in the form the terminal allows, the address on stdout, and the logs of an attached run."""

from __future__ import annotations

import contextlib
import queue
import shlex
import shutil
import sys
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError, StorageError
from pdctl.launch.log_tail import PROBE, LogFollower, LogLine
from pdctl.launch.run_record import EventKind, RunEvent
from pdctl.render import run_view, term
from pdctl.render.run_view import PlainView, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.deployment import Deployment
    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.run_record import Run
    from pdctl.render.term import Term


# Lines and columns that the live view needs besides one row and one name per process.
BESIDE_ROWS, BESIDE_NAME = 3, 66
HINT = "the logs follow; Ctrl-C ends the run, and waits for the requests in flight"
BLOCKED = 5.0  # seconds without accepting a line after which the terminal counts as blocked


class LaunchProgress(str, Enum):
    AUTO = "auto"
    TTY = "tty"
    PLAIN = "plain"
    NONE = "none"


def choose(progress: LaunchProgress, deployment: Deployment, term: Term, attached: bool) -> View:
    """The view that fits the stream: in-place redraw needs a terminal with room for every row and column."""
    if progress is LaunchProgress.NONE:
        return View()
    plain = PlainView(deployment, term, attached)
    size = shutil.get_terminal_size()
    room = size.lines > len(deployment.specs) + BESIDE_ROWS and size.columns >= plain.prefix.width + BESIDE_NAME
    fits = room and term.moves
    if progress is LaunchProgress.PLAIN or (progress is LaunchProgress.AUTO and not fits):
        return plain
    from pdctl.render.board import TerminalView  # late: rich's live display, which few terminals need

    return TerminalView(deployment, term, attached)


@contextlib.contextmanager
def _given_up() -> Iterator[None]:
    """Go on without a display if stderr takes nothing: a launch does not fail for that."""
    try:
        yield
    except OSError:
        term.silence(sys.stderr)


class LaunchDisplay:
    """Shows a launch; call `close` when it is over. follow: also show the logs, once it serves.

    For an attached run a separate thread writes, because a terminal that accepts nothing (Ctrl-S, a pipe nobody reads)
    must not stop supervision.
    """

    def __init__(self, progress: LaunchProgress, attached: bool, follow: bool) -> None:
        self._chosen = progress
        self._attached = attached
        self._follow = follow
        self._view = View()
        self._directory: RunDir | None = None
        self._follower: LogFollower | None = None
        self._served = False
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._progress = 0.0
        self._thread = threading.Thread(target=self._show, name="display", daemon=True)

    def opened(self, directory: RunDir, run: Run, where: str = "") -> None:
        with _given_up():
            self._view = choose(self._chosen, run.deployment, term.err(), self._attached)
            if self._chosen is not LaunchProgress.NONE:
                run_view.headline(run.deployment, run.name, directory.logs, term.err(), where)
        self._directory, self._run = directory, run
        if self._attached:
            self._thread.start()

    def event(self, event: RunEvent) -> None:
        if self._attached:
            self._events.put(event)
        else:
            with _given_up():
                self._view.event(event)

    def serving(self, run: Run) -> None:
        with _given_up():
            self._view.close()
        down = shlex.join(["pdctl", "down", run.name])
        try:
            run_view.banner(run, term.out())
            term.out().write(f"  {down}")
            term.out().flush()
        except OSError as error:
            term.silence(sys.stdout)
            where = f"`{run.name}` serves at {run.deployment.url} and goes on"
            fix = f"{shlex.join(['pdctl', 'status', run.name])}, or {down}"
            raise StorageError(f"standard output: {error.strerror}; {where}", fix) from None

    def say(self, sentence: str) -> None:
        with _given_up():
            term.err().write(sentence)

    def waiting(self, missing: Sequence[str]) -> None:
        run_view.cluster_waiting(missing, term.err())

    def cluster_serving(self, of: Cluster, pods: Sequence[ClusterPod]) -> None:
        run_view.cluster_serving(of, pods, term.out())

    def close(self) -> bool:
        """Wait until everything is shown; False if the terminal accepted nothing for BLOCKED seconds."""
        if self._thread.ident is None:  # not attached, or nothing was opened
            self._view.close()
            return True
        self._progress = time.monotonic()
        self._events.put(None)
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - self._progress > BLOCKED:
                return False
        return True

    def _show(self) -> None:
        with contextlib.suppress(OSError):  # the terminal or the pipe is gone: the run goes on without display
            while (event := self._events.get()) is not None:
                self._one(event)
                self._progress = time.monotonic()
        if self._follower:
            self._follower.close()
        with contextlib.suppress(OSError):  # the exit code still reports the result
            self._view.close()

    def _one(self, event: RunEvent) -> None:
        if event.kind is EventKind.ENDED and self._follower:
            self._follower.close()  # the processes' last lines come before the run's
        self._view.event(event)
        if event.kind is EventKind.SERVING:
            self._serves()

    def _serves(self) -> None:
        if self._served:  # every process was restarted
            if self._follow:
                term.err().write(f"serving again at {self._run.deployment.url}")
            return
        self._served = True
        assert self._directory is not None
        with contextlib.suppress(PdctlError):
            self._run = self._directory.load()  # with the addresses that the cluster assigned
        try:
            run_view.banner(self._run, term.out(follows=True))  # flushed, even to a pipe: scripts wait for it
        except OSError as error:
            term.silence(sys.stdout)
            term.err().write(f"standard output: {error.strerror}; serving at {self._run.deployment.url}")
        if self._follow:
            term.err().write(term.err().style(HINT, "dim"))
            self._follower = LogFollower(self._directory.ends(self._run), self._line)
            self._follower.start()

    def _line(self, line: LogLine) -> None:
        if not PROBE.search(line.text):  # health checks; `pdctl logs` shows them
            self._view.line(line)
            self._progress = time.monotonic()
