"""Which logs a verb reads, and which period of them: RUN, PATH, `-`, `--since`, `--until`, `--tz`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pdctl.cli.parameters import option
from pdctl.errors import UsageError
from pdctl.render import term

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pdctl.logs.library import Library
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log

Run = option("--run", metavar="RUN", help="Logs of this run of `pdctl launch`; RUN.1: an earlier one.")
Since = option("--since", metavar="TIME", help="Only lines since then: 2026-11-21T01:34:20, 01:34:20 or -10m.")
Until = option("--until", metavar="TIME", help="Only lines until then.")
Zone = option("--tz", metavar="ZONE", help="Zone of the logs' clocks and of the times shown; default: local.")
Dialects = option(
    "--dialects",
    metavar="DIR",
    variable="PDCTL_DIALECTS",
    help="Directory of more dialect rows (or $PDCTL_DIALECTS).",
)
Index = option("--index/--no-index", help="Keep the places of rooms for the next time.")
Verbose = option("--verbose", "-v", help="Say what was read, and how fast.")
OutputFile = option("--output-file", metavar="FILE", help="Write the answer there.")


class Sources(NamedTuple):
    """`names`: path → instance for the logs of a run; other files are named by their stem.

    `shown`: path → its name in answers if nobody typed it: a run's logs are `RUN/logs/router.log`.
    `lost`: since when and why lines of the run were not written; "" if all were, as far as is known.
    """

    paths: tuple[str, ...]
    names: Mapping[str, str]
    shown: Mapping[str, str] = MappingProxyType({})
    lost: str = ""


class LogReading(NamedTuple):
    """The command line's options for reading logs; texts as typed."""

    since: str | None = None
    until: str | None = None
    tz: str | None = None
    dialects: Path | None = None
    indexed: bool = True


def sources(paths: Sequence[str], run: str | None) -> Sources:
    """The paths as typed; without any, the logs of the named run, of the only live one, or of the latest."""
    if paths:
        if run is not None:
            raise UsageError("--run and PATH name two places", "give one of them")
        if paths.count("-") > 1:
            raise UsageError("`-` stands twice: stdin can be read once", "give it once")
        return Sources(tuple(paths), {})
    from pdctl.launch import launched  # imported late: needed only for the logs of a run
    from pdctl.launch.run import OVER
    from pdctl.launch.state import home

    files = launched.find(home(os.environ), run, OVER).log_files()
    return Sources(tuple(files.names), files.names, files.shown, files.lost)


def opened(chosen: Sources) -> tuple[Log, ...]:
    from pdctl.logs.source import open_logs

    stdin = sys.stdin.buffer if "-" in chosen.paths else None
    logs = open_logs(chosen.paths, names=chosen.names, stdin=stdin)
    if chosen.lost and logs:
        logs = (replace(logs[0], notes=(*logs[0].notes, chosen.lost)), *logs[1:])
    if not chosen.shown:
        return logs
    return tuple(replace(log, parts=tuple(_called(part, chosen.shown) for part in log.parts)) for log in logs)


def _called(part: LogPart, shown: Mapping[str, str]) -> LogPart:
    return replace(part, origin=shown.get(part.path, part.origin))


def library(logs: tuple[Log, ...], reading: LogReading, progress: Callable[[int, int], None] | None = None) -> Library:
    """The logs, limited to the period that was asked for, if any. Raise UsageError for an invalid period."""
    from pdctl.engines.vocabulary import speech
    from pdctl.logs.library import Library
    from pdctl.logs.window import read_period, timezone

    zone = timezone(reading.tz)
    spoken = speech(reading.dialects)
    whole = Library(logs, speech=spoken, tz=zone, index=reading.indexed, progress=progress)
    if reading.since is None and reading.until is None:
        return whole
    since, until = read_period(reading.since, reading.until, zone, whole.last, whole.first)
    return Library(logs, speech=spoken, tz=zone, since=since, until=until, index=reading.indexed, progress=progress)


def tell_window(library: Library, reading: LogReading) -> None:
    """Print to stderr which period counts, before the answer that depends on it."""
    from pdctl.logs.window import timezone

    note = window_note(library, timezone(reading.tz))
    if note:
        term.err().write(f"note: {note}")


def window_note(library: Library, zone: dt.tzinfo | None) -> str:
    """One sentence that says which lines count, and whether there are any; "" if all lines count."""
    if library.limits is None:
        return ""
    from pdctl.render.trace.wording import window

    span = window(library.limits, zone)
    if not library.empty:
        return f"only lines {span} count"
    first, last = library.first(), library.last()
    if first is None or last is None:
        return f"no line was written {span}: no line of these logs carries a time"
    return f"no line was written {span}: these logs have lines {window((first, last), zone)}"
