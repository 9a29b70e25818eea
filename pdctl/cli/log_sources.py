"""Which logs a verb reads, and which period of them: RUN, PATH, `-`, `--since`, `--until`, `--tz`."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import typer

from pdctl.cli.options import seconds
from pdctl.errors import UsageError
from pdctl.render import term

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pdctl.logs.library import Library
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log

CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(\.\d+)?)?")
OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})")
DAY = 86400.0
WAYS = "write 2026-11-21T01:34:20, 01:34:20 (on the day of the last line) or -10m (before the last line)"

Run = typer.Option("--run", metavar="RUN", help="Logs of this run of `pdctl launch`; RUN.1: an earlier one.")
Since = typer.Option("--since", metavar="TIME", help="Only lines since then: 2026-11-21T01:34:20, 01:34:20 or -10m.")
Until = typer.Option("--until", metavar="TIME", help="Only lines until then.")
Zone = typer.Option("--tz", metavar="ZONE", help="Zone of the logs' clocks and of the times shown; default: local.")
Dialects = typer.Option(
    "--dialects",
    metavar="DIR",
    envvar="PDCTL_DIALECTS",
    show_envvar=False,
    help="Directory of more dialect rows (or $PDCTL_DIALECTS).",
)
Index = typer.Option("--index/--no-index", help="Keep the places of rooms for the next time.")
Verbose = typer.Option("--verbose", "-v", help="Say what was read, and how fast.")
OutputFile = typer.Option("--output-file", metavar="FILE", help="Write the answer there.")


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

    zone = timezone(reading.tz)
    spoken = speech(reading.dialects)
    whole = Library(logs, speech=spoken, tz=zone, index=reading.indexed, progress=progress)
    if reading.since is None and reading.until is None:
        return whole
    last = Last(whole)
    since = None if reading.since is None else moment("--since", reading.since, zone, last, whole.first)
    until = None if reading.until is None else moment("--until", reading.until, zone, last, whole.first)
    if since is not None and until is not None and since > until:
        raise UsageError(f"--since {reading.since} is after --until {reading.until}", "swap them")
    return Library(logs, speech=spoken, tz=zone, since=since, until=until, index=reading.indexed, progress=progress)


class Last:
    """The time of the last line of all logs, determined only if a moment is relative to it."""

    def __init__(self, whole: Library) -> None:
        self._library = whole

    def __call__(self) -> float:
        stamps = [end.last for end in self._library.ends.values() if end.last is not None]
        if not stamps:
            raise UsageError("no line of these logs carries a time, so nothing is before or after it", WAYS)
        return max(stamps)


def tell_window(library: Library, reading: LogReading) -> None:
    """Print to stderr which period counts, before the answer that depends on it."""
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
    stamps = [end.last for end in library.ends.values() if end.last is not None]
    first = library.first()
    if not stamps or first is None:
        return f"no line was written {span}: no line of these logs carries a time"
    return f"no line was written {span}: these logs have lines {window((first, max(stamps)), zone)}"


def moment(
    flag: str,
    text: str,
    zone: dt.tzinfo | None,
    last: Callable[[], float],
    first: Callable[[], float | None] | None = None,
) -> float:
    """A moment in seconds since the epoch. A bare clock time is on the day of the last line.

    If that is later than the last line, it is on the day before, provided that the logs have lines of that day.
    `first`: returns the time of the first line, None if unknown. Raise UsageError if `text` is not a time.
    """
    clock = CLOCK.fullmatch(text)
    if clock is not None:
        return _on_the_day(flag, text, clock, zone, last(), first)
    if text[:1] == "-" or re.fullmatch(r"[\d.]+[a-z][\da-z.]*", text):
        return last() - seconds(flag, text.removeprefix("-"))
    try:
        # Python 3.10 does not accept the Z of RFC 3339.
        found = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise UsageError(f"{flag} {text}: this is not a time", WAYS) from None
    return _epoch(found, zone)


def _on_the_day(
    flag: str,
    text: str,
    clock: re.Match[str],
    zone: dt.tzinfo | None,
    last: float,
    first: Callable[[], float | None] | None,
) -> float:
    hour, minute, second = (int(part or 0) for part in clock.group(1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        raise UsageError(f"{flag} {text}: no clock shows that", WAYS)
    day = dt.datetime.fromtimestamp(last, zone)
    fraction = float(clock[4] or 0)
    found = _epoch(day.replace(hour=hour, minute=minute, second=second, microsecond=0), zone) + fraction
    if found <= last:
        return found
    began = first() if first is not None else None
    midnight = _epoch(day.replace(hour=0, minute=0, second=0, microsecond=0), zone)
    return found - DAY if began is not None and began < midnight else found


def _epoch(found: dt.datetime, zone: dt.tzinfo | None) -> float:
    """A time in seconds since the epoch. Without a zone of its own, it is in the logs' zone."""
    return (found if found.tzinfo or zone is None else found.replace(tzinfo=zone)).timestamp()


def timezone(text: str | None) -> dt.tzinfo | None:
    """The zone of `UTC`, `+02:00` or `Europe/Berlin`; None (this machine's zone) for `local` or nothing."""
    if text is None or text.lower() == "local":
        return None
    if text.lower() in ("utc", "z"):
        return dt.timezone.utc
    offset = OFFSET.fullmatch(text)
    if offset is not None:
        away = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if away < dt.timedelta(days=1):
            return dt.timezone(away if offset[1] == "+" else -away)
    import zoneinfo  # imported late: rarely needed

    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"--tz {text}: no such time zone", "write UTC, +02:00, local or Europe/Berlin") from None
