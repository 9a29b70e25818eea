"""The lines of one room, gathered: those that name it, those that name its request, in the order they were written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Phase
from pdctl.logs import scan
from pdctl.trace import signs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library

LONG_RIDS = 6  # letters; a client may call its requests "1", and then every other line names it
LONG_ROOMS = 6  # digits; a shorter number stands for other things in most lines


@dataclass(frozen=True, slots=True)
class Story:
    """events: lines with the room or one of its rids. rids: instance → the ids its lines give the room, in order."""

    room: int
    events: tuple[Event, ...]
    rids: Mapping[str, tuple[str, ...]]

    def by(self, role: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.role == role)

    def instances(self, role: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.instance for event in self.events if event.role == role))

    @property
    def span(self) -> tuple[float, float] | None:
        """From when on it waited to its last line, on the clocks of whoever wrote them; a time-out tells how long."""
        times = [event.t for event in self.events if event.t is not None]
        waits = [event.t - waited(event) for event in self.events if event.t is not None]
        return (min(times + waits), max(times)) if times else None


def waited(event: Event) -> float:
    """Seconds the room had spent when a time-out ended it; 0 for all other lines."""
    return numerals.real(event.values.get("seconds")) or 0.0 if event.row.phase is Phase.TIMED_OUT else 0.0


def gather(library: Library, room: int) -> Story:
    """Lines with the room, then once more those with its rids: aborts and answers name only the request."""
    named = [event for event in library.of_room(room) if _names(event, room)]
    rids: dict[str, dict[str, None]] = {}
    for event in named:
        name = signs.rid(event, room)
        if name and event.role != "router":
            rids.setdefault(event.instance, {})[name] = None
    seen = {(event.place.file, event.place.offset) for event in named}
    for instance, names in rids.items():
        for name in names:
            if len(name) < LONG_RIDS or not scan.is_searchable(name):
                continue
            # The same id on another instance may be another request: only the room joins those.
            for event in library.of_rid(name, instance):
                place = (event.place.file, event.place.offset)
                if place not in seen and event.room in (None, room):
                    seen.add(place)
                    named.append(event)
    return Story(room, ordered(named), {instance: tuple(names) for instance, names in rids.items()})


def _names(event: Event, room: int) -> bool:
    """The line is about this room: the row says so, or the number is too long to mean anything else."""
    if event.room is not None:
        return event.room == room
    if len(str(room)) >= LONG_ROOMS or room in signs.rooms(event):
        return True
    return re.search(rf"room[=\": '\[(]{{1,4}}(?:{room}|{room:#x})(?![\w.])", event.text) is not None


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """By time; a line without one follows the line above it in its file, and one second keeps each file's own order."""
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


def in_files(events: Iterable[Event]) -> tuple[Event, ...]:
    """Each file's lines in their order, one file behind the other."""
    return tuple(sorted(events, key=lambda event: (event.place.file, event.place.offset)))
