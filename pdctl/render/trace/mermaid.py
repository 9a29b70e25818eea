"""A room as a Mermaid sequence diagram: messages between instances as arrows, everything else as notes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.render.term import elided, visible
from pdctl.render.trace import wording
from pdctl.render.trace.room_text import short_room
from pdctl.render.trace.steps import collapsed, gap_name, gap_row, lanes, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.render.trace.steps import StepRow
    from pdctl.trace.room import Room

TEXT = 72  # characters of a line in a note
# All other characters are written as entities: `#` and `;` end a text, `%%` begins a comment, `<` is HTML.
SAFE = re.compile(r"[^\w .,:/=()+'|*@!?~±×-]", re.ASCII)


def to_mermaid(room: Room) -> str:
    return "\n".join(_lines(room))


def ascii_mermaid(text: str) -> str:
    """The same diagram for a stream that takes only ASCII."""
    return "".join(letter if letter.isascii() else f"#{ord(letter)};" for letter in text)


def escaped(text: str) -> str:
    """`text` on one line, with every character that is special to Mermaid as its entity code."""
    plain = SAFE.sub(lambda found: f"#{ord(found[0])};", visible(text))
    return re.sub(r"--+", lambda found: "#45;" * len(found[0]), plain)


def _lines(room: Room) -> Iterator[str]:
    yield "sequenceDiagram"
    yield f"    accTitle: {escaped(f'room {room.room}, {room.outcome.value}')}"
    ids = {lane.instance: f"L{at}" for at, lane in enumerate(lanes(room))}
    for instance, short in ids.items():
        yield f"    participant {short} as {escaped(instance)}"
    rows = collapsed(room.events)
    at = gap_row(rows, room.gap)
    drawn: set[str] = set()
    for index, row in enumerate(rows):
        if index == at:
            yield from _gap(room, rows, ids)
        yield from _arrows(room, row, ids, drawn)
        yield f"    Note over {ids[row.step.instance]}: {_note(room, row)}"
    if at == len(rows):
        yield from _gap(room, rows, ids)
    yield from _verdict(room, ids)


def _note(room: Room, row: StepRow) -> str:
    step = row.step
    when = wording.exact(step.delta_s, step.uncertainty_s)
    doubt = wording.doubt(step.uncertainty_s) if step.t is not None else ""
    parts = (when, doubt, named(row.ranks), step.phase.value.replace("_", " ") if step.phase else "")
    head = " ".join(part for part in parts if part)
    said = elided(short_room(step.text, room.room, "..."), TEXT)
    return "<br/>".join(escaped(part) for part in (head, said, f"{step.file}:{step.line}"))


def _arrows(room: Room, row: StepRow, ids: Mapping[str, str], drawn: set[str]) -> Iterator[str]:
    """Draw each message between two instances once, at the first line that proves it."""
    phase = row.step.phase.value if row.step.phase else ""
    if phase in drawn:
        return
    prefill = ids.get(room.prefill_contacted or "")
    asked, decode = ids.get(room.prefill_requested or ""), ids.get(room.decode or "")
    if phase == "dispatched":
        drawn.add(phase)
        for leg in (asked, decode):
            if leg is not None and leg != ids[row.step.instance]:
                yield f"    {ids[row.step.instance]}->>{leg}: POST"
    elif phase == "handshake" and prefill and decode:
        drawn.add(phase)
        yield f"    {decode}->>{prefill}: TransferInfo" + (
            "" if prefill == asked or asked is None else ", wrong prefill"
        )
    elif phase == "transfer" and prefill and decode:
        drawn.add(phase)
        yield f"    {prefill}->>{decode}: KV pages"


def _gap(room: Room, rows: Sequence[StepRow], ids: Mapping[str, str]) -> Iterator[str]:
    if room.gap is None or not ids:
        return
    yield "    rect rgba(214, 69, 69, 0.15)"
    yield f"    Note over {_across(ids)}: {escaped(gap_name(room, rows))}"
    yield "    end"


def _verdict(room: Room, ids: Mapping[str, str]) -> Iterator[str]:
    if not ids:
        return
    cause = room.cause
    text = f"{room.outcome.value}: {cause.code} {cause.slug}" if cause else room.outcome.value
    parts = [text, *([cause.headline] if cause else [])]
    yield f"    Note over {_across(ids)}: {'<br/>'.join(escaped(part) for part in parts)}"


def _across(ids: Mapping[str, str]) -> str:
    first, *_, last = [*ids.values(), *ids.values()]
    return first if first == last else f"{first},{last}"
