"""Rooms as a Chrome trace (JSON) for ui.perfetto.dev: one process per instance, one thread per rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pdctl.render.term import visible
from pdctl.render.trace.room_json import ROOM
from pdctl.render.trace.steps import collapsed, gap_name, lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.trace.room import Room

MICRO = 1_000_000


def to_perfetto(rooms: Sequence[Room]) -> str:
    """Times are microseconds since the first room began; lines without a time are only counted, in `otherData`."""
    zero = min((room.began for room in rooms if room.began is not None), default=0.0)
    tracks = Tracks()
    events = [event for room in rooms for event in _room(room, zero, tracks)]
    untimed = sum(step.t is None for room in rooms for step in room.events)
    other = {"schema": ROOM, "rooms": [str(room.room) for room in rooms], "began": zero, "untimed_lines": untimed}
    return json.dumps({"displayTimeUnit": "ms", "otherData": other, "traceEvents": [*tracks.names, *events]})


class Tracks:
    """Numbers for instances and ranks, and the events that name them."""

    def __init__(self) -> None:
        self.names: list[dict[str, object]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def process(self, instance: str) -> int:
        known = self._processes.get(instance)
        if known is None:
            known = self._processes[instance] = len(self._processes) + 1
            self._name("process_name", known, 0, {"name": visible(instance)})
            self._name("process_sort_index", known, 0, {"sort_index": known})
        return known

    def thread(self, process: int, name: str) -> int:
        known = self._threads.get((process, name))
        if known is None:
            known = self._threads[process, name] = len(self._threads) + 1
            self._name("thread_name", process, known, {"name": visible(name)})
        return known

    def _name(self, what: str, process: int, thread: int, args: dict[str, object]) -> None:
        self.names.append({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args})


def _room(room: Room, zero: float, tracks: Tracks) -> Iterator[dict[str, object]]:
    shift = (room.began or zero) - zero
    for lane in lanes(room):
        tracks.process(lane.instance)
    yield from _slices(room, shift, tracks)
    for step in room.events:
        if step.delta_s is None:
            continue
        process = tracks.process(step.instance)
        yield {
            "ph": "i",
            "s": "t",
            "name": step.phase.value if step.phase else step.row or "line",
            "cat": step.role or "line",
            "pid": process,
            "tid": tracks.thread(process, step.rank or "lines"),
            "ts": _micro(shift + step.delta_s),
            "args": {
                "room": str(room.room),
                "file": f"{step.file}:{step.line}",
                "text": visible(step.text),
                "uncertainty_s": step.uncertainty_s,
                "echo": step.echo,
            },
        }


def _slices(room: Room, shift: float, tracks: Tracks) -> Iterator[dict[str, object]]:
    for each in room.durations:
        if each.start is None:
            continue
        process = tracks.process(each.instance)
        figures = {"uncertainty_s": each.uncertainty_s, "bytes": each.bytes, "gb_s": each.gb_s}
        yield {
            "ph": "X",
            "name": each.name,
            "cat": "phase",
            "pid": process,
            "tid": tracks.thread(process, f"phases of {room.room}"),
            "ts": _micro(shift + each.start),
            "dur": max(_micro(each.seconds), 1),
            "args": {"room": str(room.room), **{key: value for key, value in figures.items() if value is not None}},
        }
    if room.gap is not None:
        process = tracks.process("verdict")
        yield {
            "ph": "X",
            "name": visible(gap_name(room, collapsed(room.events))),
            "cat": "gap",
            "pid": process,
            "tid": tracks.thread(process, f"gap of {room.room}"),
            "ts": _micro(shift + room.gap.start),
            "dur": max(_micro(room.gap.seconds), 1),
            "args": {
                "room": str(room.room),
                "outcome": room.outcome.value,
                "code": room.gap.code or (room.cause.code if room.cause else ""),
                "headline": visible(room.cause.headline) if room.cause else "",
            },
        }


def _micro(seconds: float) -> int:
    return round(seconds * MICRO)
