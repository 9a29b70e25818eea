"""The lines of one room, what each of them proves about it, and lines that its logs may lack."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Phase, Sign
from pdctl.engines.pdctl import own_adapters
from pdctl.logs import scan
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.room import MissingEvidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.room import Room


# Seconds for which a room may stay silent, and an answer is assumed to stream, at most: each wait is bounded by the
# bootstrap or the transfer timeout (300 s each by default, sglang 0.5.3 … 0.5.23).
PATIENCE = 330.0
LONG_RIDS = 6  # characters; a client may call its requests "1", which occurs in every other line
LASTING = 3600.0  # seconds before and after a room's lines in which its request's lines are searched for
LONG_ROOMS = 6  # digits; a shorter number usually means something else
# A value in quotes as repr() and JSON write it, unless it is a word: `"bootstrap_room": 7`, `room='7'`.
QUOTED_TEXT = r"""(?<![0-9A-Za-z])(?:'(?!\w*')(?:[^'\\]|\\.)*'|"(?!\w*")(?:[^"\\]|\\.)*")"""

GENERATES = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses")
ANSWERED_PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")
# A prefill calls a room finished when its own half is.
HALF = {Phase.FINISHED: Phase.TRANSFER}
LEFT_CODE = "PD706"


class RoomEvents(NamedTuple):
    """events: lines with the room or one of its rids. rids: instance → the request ids in its lines, in order."""

    room: int
    events: tuple[Event, ...]
    rids: Mapping[str, tuple[str, ...]]

    def by(self, role: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.role == role)

    def instances(self, role: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.instance for event in self.events if event.role == role))

    @property
    def span(self) -> tuple[float, float] | None:
        """From its first line, or the start of the wait a timeout line tells, to its last, on the hosts' own clocks."""
        times = [event.t for event in self.events if event.t is not None]
        waits = [event.t - seconds_waited(event) for event in self.events if event.t is not None]
        return (min(times + waits), max(times)) if times else None


def seconds_waited(event: Event) -> float:
    """Seconds the room had waited when a timeout ended it; 0 for all other lines."""
    return numerals.real(event.values.get("seconds")) or 0.0 if event.row.phase is Phase.TIMED_OUT else 0.0


def gather_room_events(library: Library, room: int) -> RoomEvents:
    """Gather the lines with the room, then those with its rids, because aborts and answers name only the request."""
    named = [_about(event, room) for event in library.of_room(room) if _names_room(event, room)]
    if all(event.row.id and room not in rooms_of(event) for event in named):
        return RoomEvents(room, (), {})  # known lines that only quote the number: a client's text, a refusal
    rids: dict[str, dict[str, None]] = {}
    for event in named:
        name = rid_of(event, room)
        if name and event.role != "router":
            rids.setdefault(event.instance, {})[name] = None
    seen = {(event.place.file, event.place.offset) for event in named}
    times = [event.t for event in named if event.t is not None]
    since, until = min(times, default=-math.inf) - LASTING, max(times, default=math.inf) + LASTING
    for instance, names in rids.items():
        wanted = [name for name in names if len(name) >= LONG_RIDS and scan.is_searchable(name)]
        # The same id on another instance may be another request; only the room joins requests across instances.
        for event in library.of_requests(wanted, instance, since, until) if wanted else ():
            place = (event.place.file, event.place.offset)
            if place not in seen and (event.room is None or room in rooms_of(event)):
                seen.add(place)
                named.append(_about(event, room))
    return RoomEvents(room, in_time_order(named), {instance: tuple(names) for instance, names in rids.items()})


def _names_room(event: Event, room: int) -> bool:
    """Whether the line is about this room: the row says so, or the number is too long to mean anything else.

    A line that no row reads may quote a client's text: what is in quotes there is the name of a value at most.
    """
    if event.room is not None:
        return room in rooms_of(event)
    if room in rooms_of(event):
        return True
    text = event.text if event.row.id else re.sub(QUOTED_TEXT, "''", event.text)
    if len(str(room)) >= LONG_ROOMS:
        return bool(event.row.id) or re.search(rf"(?<!\d){room}(?!\d)|{room:x}", text) is not None
    return re.search(rf"room[=\": '\[(]{{1,4}}(?:{room}|{room:#x})(?![\w.])", text) is not None


def _about(event: Event, room: int) -> Event:
    """The line as one about this room: of a batch, a router's line names the first room apart from the others."""
    if event.room in (None, room) or room not in rooms_of(event):
        return event
    return event._replace(values={**event.values, "room": str(room)})


def in_time_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Sort by time, keeping file order within a second; a line without a time follows the one above it in its file."""
    files: dict[str, list[Event]] = {}
    for event in events:
        files.setdefault(event.place.file, []).append(event)
    keyed: list[tuple[float, int, int, Event]] = []
    for at, lines in enumerate(files.values()):
        last = float("-inf")
        for event in sorted(lines, key=lambda one: one.place.offset):
            last = last if event.t is None else max(event.t, last)
            keyed.append((last, at, event.place.offset, event))
    return tuple(key[-1] for key in sorted(keyed, key=lambda key: key[:-1]))


def in_file_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Sort by file, then by position in the file."""
    return tuple(sorted(events, key=lambda event: (event.place.file, event.place.offset)))


def rooms_of(event: Event) -> tuple[int, ...]:
    """All rooms the line names: a batch has a list of them."""
    first = () if event.room is None else (event.room,)
    return (*first, *numerals.wholes(event.values.get("rooms", "")))


def rid_of(event: Event, room: int) -> str:
    """The id of the request with `room`, "" if there is none; in a batch the lists of rooms and rids correspond."""
    if event.rid:
        return event.rid
    names = re.findall(r"'([^']*)'", event.values.get("rids", ""))
    named = rooms_of(event)
    return names[named.index(room)] if room in named and len(names) == len(named) else ""


def shows_request(event: Event) -> bool:
    """Whether only a prefill that got the HTTP request writes this line about the room."""
    if event.role != "prefill" or (not event.room and not event.values.get("rooms")):
        return False
    return bool(event.rid or event.values.get("rids")) or event.proves(Sign.HAS_REQUEST)


def shows_page_list(event: Event) -> bool:
    """Whether only a prefill that got the decode's page list writes this line about the room."""
    return event.role == "prefill" and event.proves(Sign.PAGE_LIST_ARRIVED)


def is_failure(event: Event) -> bool:
    """Whether the room ended badly here; includes abort notices, which only echo a failure on the other side."""
    return event.row.phase in (Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED)


def first_failure(events: Iterable[Event], role: str) -> Event | None:
    """The first line in which this side gives the room up; one that names only the request if no other does."""
    found = [event for event in events if event.role == role and is_failure(event) and not is_abort_notice(event)]
    return next((event for event in found if event.room), found[0] if found else None)


def is_abort_notice(event: Event) -> bool:
    """Whether the line is a message about an abort between the two sides, started by the side that failed first."""
    return event.proves(Sign.ABORT_TALK)


def step_reached(event: Event) -> Phase | None:
    """The furthest step of the room this line proves."""
    phase = event.row.phase
    if phase is None:
        return None
    if phase.ends and phase is not Phase.FINISHED:
        return event.row.reached
    if event.proves(Sign.REQUEST_FINISHED) and not is_answer(event):
        return Phase.RECEIVED
    if event.role == "prefill":
        return HALF.get(phase, phase)
    return phase


def is_answer(event: Event) -> bool:
    """Whether it is a `Finish:` line of a request that was not cut short."""
    return event.proves(Sign.REQUEST_FINISHED) and finish_reason(event) not in ("", "abort")


def finish_reason(event: Event) -> str:
    """How the request ended by a `Finish:` line or its JSON form: stop, length, abort, …; "" if it does not say."""
    said = event.values.get("finish", "")
    found = re.search(r"""['"]type['"]: ['"](\w+)""", said) or re.match(r"'(\w+)'", said)
    return found[1] if found else ""


class Conclusion(NamedTuple):
    """value: an instance's name. Every conclusion rests on lines that exist.

    by_elimination: no line names it, but all others are ruled out.

    Missing lines (a log level is off, a file is cut, a collector dropped some) make the answer unknown, never a
    different one.
    """

    value: str
    why: str
    events: tuple[Event, ...] = ()
    by_elimination: bool = False


def is_canary(room_events: RoomEvents) -> bool:
    """Whether a request id is the one that doctor gives its canary with this room, or a router's line says so.

    A client chooses its own ids: the prefix alone proves nothing.
    """
    own = own_adapters.rid(room_events.room)
    named = any(rid == own for rids in room_events.rids.values() for rid in rids)
    return named or any(event.proves(Sign.CANARY) for event in room_events.events)


def left_on_purpose(room: Room) -> bool:
    """Whether doctor left this canary half-way on purpose, to check that both sides release it: nothing is wrong."""
    return room.canary and room.cause is not None and room.cause.code == LEFT_CODE


def counts_as_answer(event: Event) -> bool:
    """Whether it is an access line of a generation request, written when a stream begins or another answer ends."""
    return event.proves(Sign.REQUEST_ANSWERED) and event.values.get("path", "").split("?")[0] in ANSWERED_PATHS


BEFORE = 30.0  # seconds before a room's first line that is left in which its first ones may have been written
SPANS = 256  # kept per log; later ones are joined to the last
STAMP = "%Y-%m-%d %H:%M:%S"
FREE = "free space where its log is (`pdctl doctor` says how much is left), and reproduce it"


class LostLines(NamedTuple):
    """The lines one log lacks. first, last: between these times, as that log writes them. place: of its last word.

    spans: the periods in which they were to be written, in epoch seconds, in order. why: the error of the last of them.
    """

    instance: str
    lines: int
    first: str
    last: str
    why: str
    place: str
    spans: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        number = f"{self.lines} line{'s' if self.lines != 1 else ''}"
        period = f"between {self.first} and {self.last}"
        return f"{number} of {self.instance} {period} could not be written: {self.why} ({self.place})"

    def may_name(self, since: float, until: float) -> bool:
        """Whether a room with lines between these times may have had others among the lost ones, its end included."""
        return any(began <= until + PATIENCE and since - BEFORE <= ended for began, ended in self.spans)

    @property
    def missing_evidence(self) -> MissingEvidence:
        return MissingEvidence(str(self), FREE)


def lost_lines(library: Library, events: Iterable[Event]) -> tuple[LostLines, ...]:
    """What each log lacks of the period that was asked for, as far as `events` tell."""
    told: dict[str, list[tuple[Event, tuple[float, float]]]] = {}
    logs = {log.instance: log for log in library.logs}
    since, until = library.limits or (float("-inf"), float("inf"))
    for event in events:
        span = _span(library, logs[event.instance], event) if event.proves(Sign.LINES_LOST) else None
        if span is not None and span[0] <= until and since <= span[1]:
            told.setdefault(event.instance, []).append((event, span))
    return tuple(_of_log(name, found) for name, found in told.items())


def _span(library: Library, log: Log, event: Event) -> tuple[float, float] | None:
    began = library.instant(log, f"[{event.values['since']}] since".encode())
    if event.t is None or began is None:
        return None
    return min(began.t, event.t), event.t + event.uncertainty_s


def _of_log(name: str, found: Sequence[tuple[Event, tuple[float, float]]]) -> LostLines:
    event, (began, _) = min(found, key=lambda pair: pair[1][0])
    latest, (_, ended) = max(found, key=lambda pair: pair[1][1])
    first = event.values["since"]
    last = dt.datetime.strptime(first, STAMP) + dt.timedelta(seconds=ended - latest.uncertainty_s - began)
    lines = sum(numerals.whole(each.values["lost"]) or 0 for each, _ in found)
    spans = tuple(_joined(sorted(span for _, span in found)))
    return LostLines(name, lines, first, last.strftime(STAMP), latest.values["reason"], str(latest.place), spans)


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that overlap as one; of more than SPANS, the last reaches to the end."""
    kept: list[tuple[float, float]] = []
    for began, ended in spans:
        if kept and (began <= kept[-1][1] or len(kept) == SPANS):
            kept[-1] = (kept[-1][0], max(kept[-1][1], ended))
        else:
            kept.append((began, ended))
    return kept
