"""A run in the foreground: its start, the address on stdout, then its logs until the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pdctl.launch.events import Event, Kind
from pdctl.launch.relay import PROBE, Follower, Line
from pdctl.render import serving, term

if TYPE_CHECKING:
    from pdctl.launch.run import Run
    from pdctl.launch.state import RunDir
    from pdctl.render.live import View

HINT = "the logs follow; Ctrl-C ends the run, and waits for the requests in flight"


class Foreground:
    """Hand `event` to the supervisor; `close` when it is done. `follow`: show the logs once it serves."""

    def __init__(self, directory: RunDir, run: Run, view: View, follow: bool) -> None:
        self._directory = directory
        self._run = run
        self._view = view
        self._follow = follow
        self._follower: Follower | None = None
        self._served = False

    def event(self, event: Event) -> None:
        if event.kind is Kind.ENDED and self._follower:
            self._follower.close()  # the last words of the processes go before the last word
        self._view.event(event)
        if event.kind is Kind.SERVING:
            self._serves()

    def _serves(self) -> None:
        if self._served:  # every process was restarted
            if self._follow:
                term.err().write(f"serving again at {self._run.deployment.url}")
            return
        self._served = True
        serving.banner(self._directory.load(), term.out())  # with the addresses that a cluster gave
        if self._follow:
            term.err().write(term.err().style(HINT, "dim"))
            self._follower = Follower(self._directory.ends(self._run), self._line)
            self._follower.start()

    def _line(self, line: Line) -> None:
        if not PROBE.search(line.text):  # questions about health; `pdctl logs` has them
            self._view.line(line)

    def close(self) -> None:
        if self._follower:
            self._follower.close()
        with contextlib.suppress(OSError):  # the terminal may be gone; the exit code still tells
            self._view.close()
