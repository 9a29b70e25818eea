"""`pdctl trace-room`: find the room, tell its story from the logs, and name the cause if it broke."""

from __future__ import annotations

import os
import signal
import time
from enum import Enum
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

from pdctl.cli import log_sources
from pdctl.cli.exits import reraise
from pdctl.cli.log_sources import LogReading, Scanning, read_stats
from pdctl.cli.parameters import argument, option
from pdctl.engines import numerals
from pdctl.errors import ExitCode, NotFoundError, UsageError
from pdctl.logs.window import timezone
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.render import term
from pdctl.render.term import to_file, visible

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pdctl.logs.source import Log
    from pdctl.render.term import Term
    from pdctl.trace.room import Room
    from pdctl.trace.tracer import Tracer


HEX = 16  # hex digits of most rooms, as spans write them
CODES = {
    "ok": ExitCode.OK,
    "failed": ExitCode.FINDINGS,
    "retried": ExitCode.OK,
    "hung": ExitCode.FINDINGS,
    "aborted": ExitCode.OK,
    "refused": ExitCode.OK,
    "incomplete": ExitCode.FINDINGS,
    "unknown": ExitCode.NOT_PROBED,
}


ROOM = compile_late(r"(0[xX])?[0-9a-fA-F]+")
# Request ids as engines, routers and the OpenAI API make them: 32 hex digits, a UUID, `chatcmpl-…`, `gnt-…`.
RID = compile_late(
    r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?:chatcmpl|cmpl|gnt|resp|req|pdctl-canary)[-_][\w.-]{4,128}"
)


class RoomForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    MERMAID = "mermaid"
    PERFETTO = "perfetto"
    HTML = "html"


class FollowedRoom(NamedTuple):
    """A room that was followed. `interrupted`: by Ctrl-C; the room is as it was at that moment."""

    room: Room
    interrupted: bool


Words = argument(metavar="[ROOM] [PATH]...", help="The room, decimal or hex; logs, directories, globs or `-`.")
Output = option("--output", "-o", help="Form of the answer.")


def command(
    words: Annotated[list[str] | None, Words] = None,
    rid: Annotated[str | None, option(metavar="RID", help="The room of this request instead.")] = None,
    last_failed: Annotated[bool, option("--last-failed", help="The last room that failed.")] = False,
    slowest: Annotated[int | None, option(min=1, metavar="N", help="The N rooms that took longest.")] = None,
    run: Annotated[str | None, log_sources.Run] = None,
    follow: Annotated[bool, option("--follow", "-f", help="Show its lines as they come, until it ends.")] = False,
    timeout: Annotated[str, option(metavar="TIME", help="How long to follow it.")] = "10m",
    since: Annotated[str | None, log_sources.Since] = None,
    until: Annotated[str | None, log_sources.Until] = None,
    tz: Annotated[str | None, log_sources.Zone] = None,
    dialects: Annotated[Path | None, log_sources.Dialects] = None,
    index: Annotated[bool, log_sources.Index] = True,
    verbose: Annotated[bool, log_sources.Verbose] = False,
    output: Annotated[RoomForm, Output] = RoomForm.TEXT,
    output_file: Annotated[Path | None, log_sources.OutputFile] = None,
) -> ExitCode:
    """Tell the story of one room from the logs of router, prefills and decodes, and name the cause when it broke.

    \b
    pdctl trace-room 2148025886387619708                     # in the logs of the only run alive, or the last to end
    pdctl trace-room 2148025886387619708 logs/ router.log.gz
    pdctl trace-room 0x1dcf43f1d9a31f3c 'logs/*.log' -o html --output-file room.html
    pdctl trace-room --last-failed --run blue
    pdctl trace-room --slowest 3 logs/ --since -10m -o json
    kubectl logs decode-0 | pdctl trace-room --rid 67bb508ed39b4c6c9db20b4beddf121a -

    Exit code 0: the room is fine, its request was refused, or its client left;
    1: it failed, hangs or is incomplete; 4: the logs do not tell; 5: no line names it.
    """
    wanted, paths = chosen(words or [], rid, last_failed, slowest)
    if output is RoomForm.MERMAID and (slowest or 1) > 1:
        raise UsageError("-o mermaid draws one room", "name one, or use -o html for several")
    sources = log_sources.sources(paths, run)
    reading = LogReading(since, until, tz, dialects, index)
    zone = timezone(tz)
    why: tuple[str, ...] = ()
    shown = term.out(follows=True) if follow and output is RoomForm.TEXT and output_file is None else None
    if follow:
        from pdctl.units import flag_seconds  # imported late: only following has a time limit

        ended = _follow(wanted, sources, reading, flag_seconds("--timeout", timeout), shown)
        rooms, interrupted = [ended.room], ended.interrupted
    else:
        rooms, why = _read(wanted, sources, reading, verbose)
        interrupted = False
    found = any(room.events for room in rooms)
    unnamed = "" if found else _unnamed(rooms[0], wanted.typed, since is None and until is None)
    with to_file(output_file) as stream:
        if found or output is not RoomForm.TEXT:
            write(output, rooms, wanted.several, stream, zone, told=shown is not None)
        else:
            stream.write("".join(f"{line}\n" for line in _absent(rooms[0], unnamed)))
    term.out().flush()  # that no line names it comes before why that may be
    for line in why:
        term.err().write(f"note: {visible(line, term.err())}")
    if interrupted:
        reraise(signal.SIGINT)
    if not found:
        raise _not_found(rooms[0], unnamed, log_sources.earlier(sources))
    return exit_code(rooms)


class WantedRoom(NamedTuple):
    """Exactly one of the first four is given. typed: the room as the user typed it."""

    room: int | None = None
    rid: str | None = None
    last_failed: bool = False
    slowest: int | None = None
    typed: str = ""

    @property
    def several(self) -> bool:
        """Whether it selects rooms by a property, of which there may be several."""
        return self.slowest is not None

    @property
    def named(self) -> bool:
        return self.room is not None or self.rid is not None


def chosen(words: list[str], rid: str | None, last_failed: bool, slowest: int | None) -> tuple[WantedRoom, list[str]]:
    """The wanted rooms, and the words that are paths: all of them if a flag selects the room.

    Raise UsageError without a room, for a word that is no room, for two flags, or for a flag and a room.
    """
    given = {"--rid": rid is not None, "--last-failed": last_failed, "--slowest": slowest is not None}
    flags = [flag for flag, stands in given.items() if stands]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} choose different rooms", "give one of them")
    if flags and words and words[0].isdigit() and not os.path.lexists(words[0]):
        raise UsageError(f"room {words[0]} and {flags[0]} choose different rooms", "give one of them")
    if flags:
        return WantedRoom(None, rid, last_failed, slowest), words
    if not words:
        hint = "give its number, --rid, --last-failed or --slowest 5; `pdctl rooms` lists them"
        raise UsageError("which room?", hint)
    # Every form of a request id has 32 hex digits or a hyphen or an underscore.
    if (len(words[0]) >= 32 or not words[0].isalnum()) and RID.fullmatch(words[0]):
        return WantedRoom(None, words[0]), words[1:]
    return WantedRoom(number(words[0]), typed=words[0]), words[1:]


def number(text: str) -> int:
    """Parse a room as logs (decimal) or OTLP spans (hex) write it; digits alone are decimal. Else UsageError."""
    room = numerals.whole(text) if text.isdigit() else int(text, 16) if ROOM.fullmatch(text) else None
    if room is not None and room <= numerals.LARGEST:
        return room
    hint = "write it as 2148025886387619708 or 0x1dcf43f1d9a31f3c; `pdctl rooms` lists them"
    raise UsageError(f"`{text}` is not a room: a number below 2^64, decimal or hex", hint)


def find_rooms(tracer: Tracer, wanted: WantedRoom) -> list[Room]:
    """Trace the wanted rooms.

    A room given by number comes back even if no line names it; otherwise raise NotFoundError if nothing matches.
    """
    return [tracer.trace(each) for each in _numbers(tracer, wanted)]


def _numbers(tracer: Tracer, wanted: WantedRoom) -> Sequence[int]:
    if wanted.room is not None:
        return [wanted.room]
    from pdctl.trace import summaries

    if wanted.rid is not None:
        return [summaries.by_rid(tracer.library, wanted.rid)]
    if wanted.slowest:
        return summaries.slowest(tracer, wanted.slowest)
    return [summaries.last_failed(tracer)]


def write(
    form: RoomForm, rooms: Sequence[Room], several: bool, term: Term, zone: dt.tzinfo | None, told: bool = False
) -> None:
    """Write the rooms. several: they were chosen by a property (`--slowest`), so JSON is a list even for one room.

    told: the lines of the room were already shown.
    """
    if form is RoomForm.TEXT:
        from pdctl.render.trace.room_text import show

        for at, room in enumerate(rooms):
            if at:
                term.write(term.style(term.symbol("─", "-") * (term.width if term.tty else 72), "dim"))
            show(room, term, zone, told)
        return
    term.write(_document(form, rooms, several, term, zone))


def _document(form: RoomForm, rooms: Sequence[Room], several: bool, term: Term, zone: dt.tzinfo | None) -> str:
    if form is RoomForm.HTML:
        from pdctl.render.trace.html_page import to_html

        return to_html(rooms, zone)
    if form is RoomForm.PERFETTO:
        from pdctl.render.trace.perfetto import to_perfetto

        return to_perfetto(rooms)
    if form is RoomForm.MERMAID:
        from pdctl.render.trace.mermaid import ascii_mermaid, to_mermaid

        return to_mermaid(rooms[0]) if term.unicode else ascii_mermaid(to_mermaid(rooms[0]))
    from pdctl.render.trace import room_json

    if form is RoomForm.JSONL:
        text = room_json.to_jsonl(rooms)
    else:
        text = room_json.to_json_list(rooms) if several else room_json.to_json(rooms[0])
    return text if term.unicode else room_json.ascii_json(text)


def _unnamed(room: Room, typed: str, whole: bool) -> str:
    """The sentence that no line names the room. typed: the word it was read from. whole: no window of time is set."""
    read = f" (`{typed}` read as hex)" if typed and not typed.isdigit() else ""
    return f"no line of {'these logs' if whole else 'that time'} names room {room.room}{read}"


def _not_found(room: Room, unnamed: str, runs: Sequence[str]) -> NotFoundError:
    """unnamed: see _unnamed. runs: the earlier runs of the name whose logs were read."""
    hint = "`pdctl rooms` with the same paths lists the rooms there are"
    if runs:
        hint += f"; a room of an earlier run: --run {' or '.join(runs)}"
    if len(str(room.room)) == HEX:
        hint += f"; if it is hex, write 0x{room.room}"
    return NotFoundError(unnamed, hint)


def _absent(room: Room, unnamed: str) -> Iterator[str]:
    """The lines that replace the page about a room of which there is nothing to draw."""
    yield unnamed
    flags = list(dict.fromkeys(one.enable_with for one in room.missing_evidence))
    if flags:
        yield "if it was sent here, these would have shown it:"
        yield from (f"  {visible(flag, term.out())}" for flag in flags)


def exit_code(rooms: Sequence[Room]) -> ExitCode:
    """The worst exit code of all rooms: one that broke outweighs one of which nothing is known."""
    codes = {CODES[room.outcome.value] for room in rooms}
    return next((code for code in (ExitCode.FINDINGS, ExitCode.NOT_PROBED) if code in codes), ExitCode.OK)


def _read(
    wanted: WantedRoom, sources: log_sources.Sources, reading: LogReading, verbose: bool
) -> tuple[list[Room], tuple[str, ...]]:
    """The rooms, and why no line may name one, where none does."""
    began, progress = time.monotonic(), Scanning(term.err())
    try:
        library = log_sources.library(log_sources.opened(sources), reading, progress)
        log_sources.tell_window(library, reading)
        from pdctl.trace.tracer import Tracer  # imported late: a mistake on the command line is answered without it

        tracer = Tracer(library)
        try:
            rooms = find_rooms(tracer, wanted)
        except NotFoundError:
            for note in library.stream_notes:  # the room may be in what is missing
                term.err().write(f"note: {visible(note, term.err())}")
            raise
        several = log_sources.several_deployments(library, " ".join(["trace-room", *wanted.typed.split()]))
        said = (*several, *(() if any(room.events for room in rooms) else _why_unnamed(tracer)))
    finally:
        progress.close()
    if verbose:
        read_stats(library, time.monotonic() - began, term.err())
    return rooms, said


def _why_unnamed(tracer: Tracer) -> tuple[str, ...]:
    from pdctl.trace.summaries import ListNotes  # imported late: needed only if no room is found

    return ListNotes(tracer).of_one()


def _follow(
    wanted: WantedRoom, sources: log_sources.Sources, reading: LogReading, limit: float, shown: Term | None
) -> FollowedRoom:
    """Follow a room until it ends, the time limit is reached or Ctrl-C is pressed; return it as it is then."""
    from pdctl.render.trace.following import RoomFollower
    from pdctl.trace.tracer import Tracer

    if not wanted.named or "-" in sources.paths:
        raise UsageError("--follow needs one room and files that grow", "name the room and the paths")

    def read(logs: tuple[Log, ...]) -> Room | None:
        try:
            (room,) = find_rooms(Tracer(log_sources.library(logs, reading)), wanted)
        except NotFoundError:
            return None
        return room if room.events else None

    follower = RoomFollower(lambda: log_sources.opened(sources), read, shown)
    interrupted = False
    try:
        follower.run(limit)
    except KeyboardInterrupt:
        if follower.room is None:
            reraise(signal.SIGINT)
        interrupted = True
    if follower.room is None:
        name = wanted.rid or str(wanted.room)
        raise NotFoundError(f"no line named {name} within {limit:g} s", "`pdctl rooms` lists the rooms there are")
    return FollowedRoom(follower.room, interrupted)
