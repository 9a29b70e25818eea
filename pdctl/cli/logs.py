"""`pdctl logs`: the output of a run's processes, prefixed and in order of time."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Annotated

from pdctl.cli import log_sources
from pdctl.cli.exits import reraise
from pdctl.cli.parameters import argument, option
from pdctl.errors import UsageError
from pdctl.launch import launched
from pdctl.launch.log_tail import LogQuestion
from pdctl.launch.run_directory import home
from pdctl.render import run_view, term

if TYPE_CHECKING:
    from pdctl.launch.launched import Launched


def command(
    words: Annotated[
        list[str] | None,
        argument(metavar="[RUN] [INSTANCE]...", help="The run (not needed for a single one) and its instances."),
    ] = None,
    follow: Annotated[bool, option("--follow", "-f", help="Go on until the run is over.")] = False,
    tail: Annotated[int | None, option(min=0, metavar="N", help="Only the last N lines of each instance.")] = None,
    since: Annotated[str | None, log_sources.Since] = None,
    grep: Annotated[str | None, option(metavar="REGEX", help="Only lines that match a regular expression.")] = None,
    raw: Annotated[bool, option("--raw", help="Without the instance's name in front.")] = False,
) -> None:
    """Show or follow the logs of a run.

    \b
    pdctl logs -f                                 # the only run alive, or the last to end
    pdctl logs blue decode-0 --tail 50
    pdctl logs blue.1                             # an earlier run of that name (pdctl ls)
    pdctl logs blue --since -10m                  # the ten minutes before the last line
    pdctl logs blue --grep 'room=123|ERROR'
    """
    found, instances = launched.find_by(home(os.environ), words or [])
    if not words or words[0] != found.name:
        log_sources.tell_choice(found, read=True)
    printer = run_view.LogPrinter(found.deployment, term.out(follows=True), _pattern(grep), raw)
    begins = None if since is None else _begins(found, since)
    try:
        for batch in found.lines(LogQuestion(instances, follow, tail, begins, raw)):
            printer.show(batch)
    except KeyboardInterrupt:
        reraise(signal.SIGINT)


def _begins(found: Launched, since: str) -> float:
    """The moment in seconds since the epoch. For a run, print that moment to stderr, and whether lines follow it."""
    from pdctl.logs.window import moment

    if found.deployment is None:  # relative to now: kubectl does not tell when the last line was written
        return moment("--since", since, None, time.time)
    from pdctl.logs.library import Library

    files = found.log_files()
    opened = log_sources.opened(log_sources.Sources(tuple(files.names), files.names, files.shown))
    whole = Library(opened)
    begins = moment("--since", since, None, whole.last, whole.first)
    note = log_sources.window_note(Library(opened, since=begins), None)
    term.err().write(f"note: {note}")
    return begins


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """The compiled `--grep`; None if it is not given. Raise UsageError if it is not a regular expression."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}", "escape it: --grep 'a\\(b'") from None
