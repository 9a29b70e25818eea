"""The tables of the HTML page: lines, evidence, phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.trace import measures
from pdctl.render.trace.gaps import gap_name, gap_row
from pdctl.render.trace.lanes import lanes
from pdctl.render.trace.markup import role_class, safe
from pdctl.render.trace.outcomes import BROKEN
from pdctl.render.trace.rows import collapsed, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.render.trace.rows import Row
    from pdctl.trace.room import Evidence, Room


def event_rows(room: Room, prefix: str) -> Iterator[str]:
    """Every line; the id of a row is where its mark leads."""
    yield '<div class="scroll"><table><thead><tr><th>since start</th><th>where</th><th>phase</th>'
    yield "<th>file</th><th>line</th></tr></thead><tbody>"
    rows = collapsed(room.events)
    gap = gap_row(rows, room.gap)
    for at, row in enumerate(rows):
        if at == gap:
            yield _gap(room, rows)
        step = row.step
        when = " ".join((measures.exact(step.delta_s, step.uncertainty_s), measures.doubt(step.uncertainty_s)))
        phase = step.phase.value.replace("_", " ") if step.phase else ""
        kind = role_class(step.role) + (" echo" if step.echo else "")
        yield f'<tr id="{prefix}{at}" class="{kind}"><td class="num">{when.strip()}</td>'
        yield f'<td class="who">{safe(f"{step.instance} {named(row.ranks)}".strip())}</td><td>{phase}</td>'
        yield f'<td class="place">{safe(f"{step.file}:{step.line}")}</td><td class="text">{safe(step.text)}</td></tr>'
    if gap == len(rows):
        yield _gap(room, rows)
    yield "</tbody></table></div>"


def lines(found: Sequence[Evidence], room: Room) -> Iterator[str]:
    roles = {lane.instance: lane.role for lane in lanes(room)}
    yield '<div class="scroll"><table><tbody>'
    for line in found:
        yield f'<tr class="{role_class(roles.get(line.instance, ""))}"><td class="who">{safe(line.instance)}</td>'
        yield f'<td class="place">{safe(f"{line.file}:{line.line}")}</td>'
        says = f'<span class="says">{safe(line.says)}</span>' if line.says else ""
        yield f'<td class="text">{says}{safe(line.text)}</td></tr>'
    yield "</tbody></table></div>"


def durations(room: Room) -> Iterator[str]:
    roles = {lane.instance: lane.role for lane in lanes(room)}
    yield '<div class="scroll"><table class="figures"><thead><tr><th>phase</th><th>where</th>'
    yield "".join(f'<th class="num">{head}</th>' for head in ("began", "took", "moved", "speed"))
    yield "</tr></thead><tbody>"
    for each in room.durations:
        began = measures.began(each)
        took = f"{measures.took(each.seconds, each.uncertainty_s)} {measures.doubt(each.uncertainty_s)}".strip()
        moved = "" if each.bytes is None else measures.size(each.bytes)
        speed = "" if each.gb_s is None else measures.speed(each.gb_s)
        yield f'<tr class="{role_class(roles.get(each.instance, ""))}"><td>{safe(each.name)}</td>'
        yield f'<td class="who">{safe(each.instance)}</td>'
        yield "".join(f'<td class="num">{cell}</td>' for cell in (began, took, moved, speed)) + "</tr>"
    yield "</tbody></table></div>"


def _gap(room: Room, rows: Sequence[Row]) -> str:
    if room.gap is None:
        return ""
    calm = "" if room.outcome.value in BROKEN else " calm"
    return f'<tr class="gap-row{calm}"><td colspan="5">{safe(gap_name(room, rows))}</td></tr>'
