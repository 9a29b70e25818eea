"""Prints the logs of a run: what is there, then what comes."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.launch.log_tail import POLL, history
from pdctl.render.launch_view import NamePrefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.launch.log_tail import LogLine, LogTail
    from pdctl.launch.run import Run
    from pdctl.render.term import Term


def pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}", "escape it: --grep 'a\\(b'") from None


class Printer:
    """Writes the lines that match, prefixed unless `raw`."""

    def __init__(self, run: Run, term: Term, grep: re.Pattern[str] | None, raw: bool) -> None:
        self._term = term
        self._grep = grep
        self._prefix = None if raw else NamePrefix(run.deployment, term)

    def __call__(self, line: LogLine) -> None:
        if self._grep and not self._grep.search(line.text):
            return
        self._term.write(self._prefix.line(line) if self._prefix else line.text)

    def flush(self) -> None:
        """A reader behind a pipe follows too."""
        self._term.stream.flush()


def show(files: Mapping[str, LogTail], printer: Printer, tail: int | None = None, since: float | None = None) -> None:
    """What the files hold now, from `since` (epoch) on; called again, what was added since then."""
    for line in history(files, tail, "" if since is None else _local(since)):
        printer(line)
    printer.flush()


def _local(moment: float) -> str:
    """As lines have it: in the zone of this machine, down to the millisecond."""
    return dt.datetime.fromtimestamp(moment).isoformat(" ", "milliseconds")


def follow(files: Mapping[str, LogTail], printer: Printer, over: Callable[[], bool]) -> None:
    """Until the run is over and everything it wrote has been shown."""
    ended = False
    while not ended:
        ended = over()  # asked first: what was written before the end is in the files by now
        show(files, printer)
        time.sleep(0.0 if ended else POLL)
