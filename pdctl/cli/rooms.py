"""`pdctl rooms`: list the rooms in the logs and how each went; select and sort them."""

from __future__ import annotations

import time
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

from pdctl.cli import log_sources
from pdctl.cli.log_sources import LogReading, Scanning, read_stats
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, UsageError
from pdctl.logs.window import timezone
from pdctl.quick_definitions import NamedTuple
from pdctl.render import room_list as render
from pdctl.render import term
from pdctl.render.term import to_file, visible
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import RoomSummary
    from pdctl.trace.summaries import ListNotes


class RoomOrder(str, Enum):
    """The sort keys. The latest, longest or furthest room is last; `--reverse` reverses the order."""

    STARTED = "started"
    DURATION = "duration"
    PHASE = "phase"
    OUTCOME = "outcome"
    PREFILL = "prefill"
    DECODE = "decode"
    CAUSE = "cause"
    ROOM = "room"


class RoomListForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"


NAMED = 8  # names in a note
FILTERS = ("room", "prefill", "decode", "phase", "outcome", "cause")

Paths = argument(metavar="[PATH]...", help="Logs, directories, globs or `-`; none: those of the run.")
Filter = option(
    "--filter", metavar="KEY=VALUE", help=f"Only rooms whose {', '.join(FILTERS)} is that; `*` is a wildcard."
)
Outcomes = option(
    "--outcome",
    metavar="OUTCOME",
    help="Only ok, failed, hung, retried, aborted, refused, incomplete or unknown; repeatable.",
)
Least = option("--min-duration", metavar="TIME", help="Only rooms that took at least that long.")


def command(
    paths: Annotated[list[str] | None, Paths] = None,
    run: Annotated[str | None, log_sources.Run] = None,
    filters: Annotated[list[str] | None, Filter] = None,
    outcome: Annotated[list[str] | None, Outcomes] = None,
    prefill: Annotated[str | None, option("--prefill", metavar="NAME", help="Only rooms of this prefill.")] = None,
    decode: Annotated[str | None, option("--decode", metavar="NAME", help="Only rooms of this decode.")] = None,
    least: Annotated[str | None, Least] = None,
    sort: Annotated[RoomOrder, option("--sort", help="In order of what.")] = RoomOrder.STARTED,
    reverse: Annotated[bool, option("--reverse", "-r", help="The other way round.")] = False,
    limit: Annotated[int | None, option(min=1, metavar="N", help="The first N of them.")] = None,
    since: Annotated[str | None, log_sources.Since] = None,
    until: Annotated[str | None, log_sources.Until] = None,
    tz: Annotated[str | None, log_sources.Zone] = None,
    dialects: Annotated[Path | None, log_sources.Dialects] = None,
    index: Annotated[bool, log_sources.Index] = True,
    build: Annotated[bool, option("--build-index", help="Index all rooms, for trace-room on huge logs.")] = False,
    verbose: Annotated[bool, log_sources.Verbose] = False,
    output: Annotated[RoomListForm, option("--output", "-o", help="Form of the answer.")] = RoomListForm.TEXT,
    output_file: Annotated[Path | None, log_sources.OutputFile] = None,
) -> ExitCode:
    """List the rooms in the logs: when, which pair, the phase it reached, how long, how it ended.

    \b
    pdctl rooms                                        # of the only run alive, or the last to end
    pdctl rooms logs/ --outcome failed --outcome hung
    pdctl rooms logs/ --sort duration --reverse --limit 10
    pdctl rooms 'logs/*.log.gz' --filter cause=PD2* --prefill prefill-1 -o tsv

    Exit code: 0 however the rooms went. Of an empty list: 1 when an instance died by its log, 4 when no line of the
    window is an engine's or a router's.
    """
    if build and not index:
        raise UsageError("--build-index and --no-index contradict each other", "give one of them")
    wanted = [*(filters or []), *(f"{key}={name}" for key, name in (("prefill", prefill), ("decode", decode)) if name)]
    keep = matcher(wanted, outcome or [], None if least is None else flag_seconds("--min-duration", least))
    sources = log_sources.sources(paths or [], run)
    known, notes, several = _read(sources, LogReading(since, until, tz, dialects, index), verbose, build)
    found = sorted((room for room in known if keep(room)), key=FIELDS[sort.value].key, reverse=reverse)  # type: ignore[arg-type]
    found = found[:limit]
    said = (*several, *notes.lines(listed=bool(known)), *_unmatched(known, wanted))
    with to_file(output_file) as stream:
        if output is RoomListForm.TEXT:
            render.show(found, stream, timezone(tz))
        else:
            stream.write(_document(output, found, said, stream))
    if output is RoomListForm.TEXT and term.out().tty:
        term.err().write(render.totals(found, len(known)))
    for line in said:
        term.err().write(f"note: {visible(line, term.err())}")
    return ExitCode.OK if known else _code_of_empty_list(notes)


class Field(NamedTuple):
    """text: what a filter compares; key: what rooms are sorted by, with unknown values first."""

    text: Callable[[RoomSummary], str]
    key: Callable[[RoomSummary], object]


FIELDS: dict[str, Field] = {
    "room": Field(lambda room: str(room.room), lambda room: room.room),
    "started": Field(lambda room: str(room.first_seen or ""), lambda room: room.first_seen or 0.0),
    "prefill": Field(lambda room: room.prefill or "", lambda room: room.prefill or ""),
    "decode": Field(lambda room: room.decode or "", lambda room: room.decode or ""),
    "phase": Field(
        lambda room: room.phase_reached.value if room.phase_reached else "",
        lambda room: room.phase_reached.order if room.phase_reached else -1,
    ),
    "duration": Field(
        lambda room: str(room.seconds or ""), lambda room: -1.0 if room.seconds is None else room.seconds
    ),
    "outcome": Field(lambda room: room.outcome.value, lambda room: room.outcome.value),
    "cause": Field(lambda room: room.code, lambda room: room.code),
}


def matcher(filters: Sequence[str], outcomes: Sequence[str], least: float | None) -> Callable[[RoomSummary], bool]:
    """A predicate on summaries: all filters must hold, and one of the outcomes. UsageError for an unknown name."""
    from pdctl.trace.room import RoomOutcome

    known = [each.value for each in RoomOutcome]
    for outcome in outcomes:
        if outcome not in known:
            raise UsageError(f"--outcome {outcome}: no room ends like that", f"one of {', '.join(known)}")
    pairs = [_pair(each) for each in filters]

    def keep(room: RoomSummary) -> bool:
        long = least is None or (room.seconds is not None and room.seconds >= least)
        ended = not outcomes or room.outcome.value in outcomes
        return long and ended and all(fnmatchcase(FIELDS[key].text(room), value) for key, value in pairs)

    return keep


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in FILTERS:
        raise UsageError(f"--filter {text}: no such field", f"write KEY=VALUE with one of {', '.join(FILTERS)}")
    return key, value


def _unmatched(known: Sequence[RoomSummary], filters: Sequence[str]) -> Iterator[str]:
    """A sentence on each filter by name that no room matches, with the names that there are."""
    for key, value in map(_pair, filters):
        names = sorted({FIELDS[key].text(room) for room in known} - {""})
        if known and key != "room" and not any(fnmatchcase(name, value) for name in names):
            listed = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
            yield f"no room has {key} {value}: " + (f"there are {listed}" if names else f"none has a {key}")


def _document(form: RoomListForm, found: Sequence[RoomSummary], notes: Sequence[str], stream: Term) -> str:
    if form is RoomListForm.JSON:
        return render.to_json(found, stream, notes)
    return render.to_jsonl(found, stream) if form is RoomListForm.JSONL else render.to_tsv(found, stream)


def _code_of_empty_list(notes: ListNotes) -> ExitCode:
    """The exit code for an empty list, which is fine unless an instance died or no line was recognized."""
    if notes.died:
        return ExitCode.FINDINGS
    return ExitCode.OK if notes.known else ExitCode.NOT_PROBED


def _read(
    sources: log_sources.Sources, reading: LogReading, verbose: bool, build: bool
) -> tuple[Sequence[RoomSummary], ListNotes, tuple[str, ...]]:
    began, progress = time.monotonic(), Scanning(term.err())
    try:
        library = log_sources.library(log_sources.opened(sources), reading, progress)
        log_sources.tell_window(library, reading)
        from pdctl.trace.summaries import ListNotes, room_summaries
        from pdctl.trace.tracer import Tracer

        if build and (why := library.build_index()):
            term.err().write(f"warning: not every log can be indexed: {why}")
        tracer = Tracer(library)
        found = room_summaries(tracer)
        notes = ListNotes(tracer)
    finally:
        progress.close()
    if verbose:
        read_stats(library, time.monotonic() - began, term.err())
    return found, notes, log_sources.several_deployments(library, "rooms")
