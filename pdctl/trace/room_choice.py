"""Which rooms a command means (by number, request id or property), and the fields that lists filter and sort by."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.logs.library import Library
    from pdctl.trace.room import Room, RoomSummary
    from pdctl.trace.tracer import Tracer

ROOM = re.compile(r"(0[xX])?[0-9a-fA-F]+")
# Request ids as engines, routers and the OpenAI API make them: 32 hex digits, a UUID, `chatcmpl-…`, `gnt-…`.
RID = re.compile(
    r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?:chatcmpl|cmpl|gnt|resp|req|pdctl-canary)[-_][\w.-]{4,128}"
)
FILTERS = ("room", "prefill", "decode", "phase", "outcome", "cause")


class WantedRoom(NamedTuple):
    """Exactly one of the first four is given. typed: the room as the user typed it."""

    room: int | None = None
    rid: str | None = None
    last_failed: bool = False
    slowest: int | None = None
    typed: str = ""

    @property
    def selection(self) -> bool:
        """Whether it selects rooms by a property, so that there may be several."""
        return self.slowest is not None

    @property
    def named(self) -> bool:
        return self.room is not None or self.rid is not None


def chosen(words: list[str], rid: str | None, last_failed: bool, slowest: int | None) -> tuple[WantedRoom, list[str]]:
    """The wanted rooms, and the words that are paths: all of them if a flag selects the room.

    Raise UsageError without a room, for a word that is no room, or for two flags.
    """
    given = {"--rid": rid is not None, "--last-failed": last_failed, "--slowest": slowest is not None}
    flags = [flag for flag, stands in given.items() if stands]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} choose different rooms", "give one of them")
    if flags:
        return WantedRoom(None, rid, last_failed, slowest), words
    if not words:
        hint = "give its number, --rid, --last-failed or --slowest 5; `pdctl rooms` lists them"
        raise UsageError("which room?", hint)
    if RID.fullmatch(words[0]):
        return WantedRoom(None, words[0]), words[1:]
    return WantedRoom(number(words[0]), typed=words[0]), words[1:]


def number(text: str) -> int:
    """Parse a room as logs (decimal) or OTLP spans (hex) write it; digits alone are decimal. Else UsageError."""
    if ROOM.fullmatch(text):
        room = numerals.whole(text) if text.isdigit() else int(text, 16)
        if room is not None and room <= numerals.LARGEST:
            return room
    hint = "write it as 2148025886387619708 or 0x1dcf43f1d9a31f3c; `pdctl rooms` lists them"
    raise UsageError(f"`{text}` is not a room: a number below 2^64, decimal or hex", hint)


def find(library: Library, wanted: WantedRoom) -> list[Room]:
    """Trace the wanted rooms.

    A room given by number comes back even if no line names it; otherwise raise NotFoundError if nothing matches.
    """
    from pdctl.trace.tracer import Tracer

    tracer = Tracer(library)  # one for all of them: it reads what concerns every room once
    return [tracer.trace(each) for each in _numbers(library, wanted, tracer)]


def _numbers(library: Library, wanted: WantedRoom, tracer: Tracer) -> Sequence[int]:
    if wanted.room is not None:
        return [wanted.room]
    from pdctl.trace import summaries

    if wanted.rid is not None:
        return [summaries.by_rid(library, wanted.rid)]
    if wanted.slowest:
        return summaries.slowest(library, wanted.slowest, tracer)
    return [summaries.last_failed(library, tracer)]


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
