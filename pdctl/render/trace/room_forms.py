"""The forms of `pdctl trace-room -o`. Each is imported only when used."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import Room


class RoomForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    MERMAID = "mermaid"
    PERFETTO = "perfetto"
    HTML = "html"


def write(
    form: RoomForm, rooms: Sequence[Room], selection: bool, term: Term, zone: dt.tzinfo | None, told: bool = False
) -> None:
    """Write the rooms. selection: they were chosen by a property (`--slowest`), so JSON is a list even for one room.

    told: the lines of the room were already shown.
    """
    if form is RoomForm.TEXT:
        from pdctl.render.trace.room_text import show

        for at, room in enumerate(rooms):
            if at:
                term.write(term.style(term.symbol("─", "-") * (term.width if term.tty else 72), "dim"))
            show(room, term, zone, told)
        return
    term.write(_document(form, rooms, selection, term, zone))


def _document(form: RoomForm, rooms: Sequence[Room], selection: bool, term: Term, zone: dt.tzinfo | None) -> str:
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
        text = room_json.to_json_list(rooms) if selection else room_json.to_json(rooms[0])
    return text if term.unicode else room_json.ascii_json(text)
