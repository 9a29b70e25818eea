"""The timeline of the HTML page: lanes as rows, a box for each second, bars for phases, the gap shaded."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pdctl.render.trace import measures
from pdctl.render.trace.axis import Axis
from pdctl.render.trace.gaps import gap_name
from pdctl.render.trace.lanes import lanes
from pdctl.render.trace.markup import role_class, safe
from pdctl.render.trace.outcomes import BROKEN
from pdctl.render.trace.rows import Row, collapsed, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.trace.room import Room

MARK, BAR, TOP = 24, 20, 11  # pixels: a row of marks, a row of bars, above the first
MARK_WIDTH = 1.6  # percent of the line one mark needs, on a page of usual width
LETTER = 0.75  # percent of the line one letter of a bar's name needs


class Mark(NamedTuple):
    """`at`: index of its row among all rows, which is also its row's id in the table of lines."""

    at: int
    row: Row


class Box(NamedTuple):
    """What one clock reading holds, in the order of its file."""

    left: float
    width: float
    level: int
    marks: tuple[Mark, ...]


class Bar(NamedTuple):
    left: float
    width: float
    level: int
    name: str
    told: str


def chart(room: Room, prefix: str) -> Iterator[str]:
    axis, rows = Axis.of(room), collapsed(room.events)
    yield '<div class="scroll"><div class="chart">'
    yield from _gap_name(room, rows, axis)
    for lane in lanes(room):
        boxes = _boxes([Mark(at, row) for at, row in enumerate(rows) if row.step.instance == lane.instance], axis)
        bars = _bars(room, lane.instance, axis)
        deep, low = (1 + max((each.level for each in found), default=-1) for found in (boxes, bars))
        height = TOP + MARK * max(deep, 1) + BAR * low + 4
        role = role_class(lane.role)
        yield f'<div class="lane-name {role}"><b>{safe(lane.instance)}</b><span>{safe(lane.why)}</span></div>'
        yield f'<div class="track {role}" style="min-height:{height}px"><div class="rail"></div>'
        yield from _gap(room, axis)
        yield from (_drawn_box(box, prefix) for box in boxes)
        yield from (_drawn_bar(bar, TOP + MARK * max(deep, 1)) for bar in bars)
        yield "</div>"
    yield '<div></div><div class="axis">'
    doubt = max((row.step.uncertainty_s for row in rows), default=0.0)
    yield from (f'<span style="left:{place:.2f}%">{measures.exact(at, doubt)}</span>' for at, place in axis.ticks())
    yield "</div></div></div>"


def _boxes(marks: Iterable[Mark], axis: Axis) -> list[Box]:
    """Marks of one second share a box: where in it they belong, nobody knows. Boxes that would overlap go lower."""
    ends: list[float] = []
    boxes = []
    timed = (mark for mark in marks if mark.row.step.delta_s is not None)
    for (start, doubt), group in groupby(
        timed, key=lambda mark: (mark.row.step.delta_s or 0.0, mark.row.step.uncertainty_s)
    ):
        inside = tuple(group)
        left = axis.place(start)
        width = max(axis.place(start + doubt) - left, MARK_WIDTH * len(inside))
        left = max(0.0, min(left, 100.0 - width))
        boxes.append(Box(left, width, _level(ends, left, width), inside))
    return boxes


def _bars(room: Room, instance: str, axis: Axis) -> list[Bar]:
    ends: list[float] = []
    bars = []
    for each in room.durations:
        if each.instance != instance or each.start is None:
            continue
        left = axis.place(each.start)
        width = max(axis.place(each.start + each.seconds) - left, 0.3)
        name = f"{each.name} {measures.took(each.seconds, each.uncertainty_s)}"
        moved = [] if each.bytes is None else [measures.size(each.bytes)]
        moved += [] if each.gb_s is None else [measures.speed(each.gb_s)]
        reach = min(max(width, LETTER * len(name)), 100.0 - left)
        bars.append(Bar(left, width, _level(ends, left, reach), name, ", ".join([name, *moved])))
    return bars


def _level(ends: list[float], left: float, width: float) -> int:
    """The first level that is free from `left` on; it is taken to `left + width`."""
    for level, end in enumerate(ends):
        if end <= left + 1e-9:
            ends[level] = left + width
            return level
    ends.append(left + width)
    return len(ends) - 1


def _gap(room: Room, axis: Axis) -> Iterator[str]:
    if room.gap is not None:
        left = axis.place(room.gap.start)
        width = axis.place(room.gap.end) - left
        yield f'<div class="gap{_calm(room)}" style="left:{left:.2f}%;width:{width:.2f}%"></div>'


def _gap_name(room: Room, rows: Sequence[Row], axis: Axis) -> Iterator[str]:
    """Above the lanes, on the side of the gap that leaves it more room."""
    if room.gap is None:
        return
    left, right = axis.place(room.gap.start), axis.place(room.gap.end)
    side = f"margin-left:{left:.2f}%" if left <= 100 - right else f"margin-right:{100 - right:.2f}%;text-align:right"
    yield f'<div></div><div class="gap-name{_calm(room)}" style="{side}">{safe(gap_name(room, rows))}</div>'


def _calm(room: Room) -> str:
    return "" if room.outcome.value in BROKEN else " calm"


def _drawn_box(box: Box, prefix: str) -> str:
    marks = "".join(_drawn_mark(mark, prefix) for mark in box.marks)
    place = f"left:{box.left:.2f}%;width:{box.width:.2f}%;top:{TOP + MARK * box.level}px"
    return f'<div class="second" style="{place}">{marks}</div>'


def _drawn_mark(mark: Mark, prefix: str) -> str:
    step = mark.row.step
    phase = step.phase.value if step.phase else "line"
    kind = " echo" if step.echo else f" end {phase}" if step.phase and step.phase.ends else ""
    when = " ".join((measures.exact(step.delta_s, step.uncertainty_s), measures.doubt(step.uncertainty_s))).strip()
    who = f"{step.instance} {named(mark.row.ranks)}".strip()
    head = safe(f"{when}  {who}  {phase.replace('_', ' ')}  {step.file}:{step.line}")
    return (
        f'<a class="mark{kind}" href="#{prefix}{mark.at}" data-at="{mark.at}" data-head="{head}" '
        f'data-text="{safe(step.text)}" title="{head}" aria-label="{head}: {safe(step.text)}"></a>'
    )


def _drawn_bar(bar: Bar, top: int) -> str:
    place = f"left:{bar.left:.2f}%;width:{bar.width:.2f}%;top:{top + BAR * bar.level}px"
    return f'<div class="bar" style="{place}" title="{safe(bar.told)}">{safe(bar.name)}</div>'
