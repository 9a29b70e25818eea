"""The forms of `pdctl trace-room -o`. Each pays for itself alone."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import Room


class Form(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    MERMAID = "mermaid"
    PERFETTO = "perfetto"
    HTML = "html"


def write(
    form: Form, rooms: Sequence[Room], selection: bool, term: Term, zone: dt.tzinfo | None, told: bool = False
) -> None:
    """`selection`: the rooms were chosen by what they are (`--slowest`), so JSON is a list whatever their number.

    `told`: the lines of the room stand above already.
    """
    if form is Form.TEXT:
        from pdctl.render.trace.text import show

        for at, room in enumerate(rooms):
            if at:
                term.write(term.style(term.symbol("─", "-") * (term.width if term.tty else 72), "dim"))
            show(room, term, zone, told)
        return
    term.write(_document(form, rooms, selection, term, zone))


def _document(form: Form, rooms: Sequence[Room], selection: bool, term: Term, zone: dt.tzinfo | None) -> str:
    if form is Form.HTML:
        from pdctl.render.trace.page import to_html

        return to_html(rooms, zone)
    if form is Form.PERFETTO:
        from pdctl.render.trace.perfetto import to_perfetto

        return to_perfetto(rooms)
    if form is Form.MERMAID:
        from pdctl.render.trace.mermaid import ascii_mermaid, to_mermaid

        return to_mermaid(rooms[0]) if term.unicode else ascii_mermaid(to_mermaid(rooms[0]))
    from pdctl.render.trace import document

    if form is Form.JSONL:
        text = document.to_jsonl(rooms)
    else:
        text = document.to_json_list(rooms) if selection else document.to_json(rooms[0])
    return text if term.unicode else document.ascii_json(text)
