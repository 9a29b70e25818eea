"""Rooms as one HTML file: no network, no fonts, ASCII; a log line is text in it and can be nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.package_data import data
from pdctl.render.trace import measures
from pdctl.render.trace.chart import chart
from pdctl.render.trace.markup import safe
from pdctl.render.trace.outcomes import MARKS, STRAY, waits
from pdctl.render.trace.page_rows import durations, event_rows, lines
from pdctl.render.trace.places import shortest

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.trace.room import Room

HERE = data("render/trace")


def to_html(rooms: Sequence[Room], zone: dt.tzinfo | None = None) -> str:
    return "\n".join(_page(rooms, zone)).encode("ascii", "xmlcharrefreplace").decode()


def _page(rooms: Sequence[Room], zone: dt.tzinfo | None) -> Iterator[str]:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"room {rooms[0].room}" if len(rooms) == 1 else f"{len(rooms)} rooms"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{safe(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>"
    for number, room in enumerate(rooms):
        yield from _section(room, f"r{number}-", zone)
    yield f"<footer>pdctl {__version__} trace-room</footer>\n</main>"
    yield f"<script>\n{script}</script>\n</body>\n</html>"


def _section(told: Room, prefix: str, zone: dt.tzinfo | None) -> Iterator[str]:
    shown = (*told.evidence, *told.echoes)
    names = shortest([*(step.file for step in told.events), *(line.file for line in shown)])
    room = _renamed(told, names)
    yield '<section class="room">'
    yield from _head(room, zone)
    yield from _verdict(room)
    if any(step.delta_s is not None for step in room.events):
        yield "<h2>Timeline</h2>"
        yield from chart(room, prefix)
        yield '<div class="tip" aria-live="polite">Point at a mark, or walk them with the arrow keys.</div>'
    if room.evidence:
        yield "<h2>Evidence</h2>"
        yield from lines(room.evidence, room)
    if room.echoes:
        yield "<h2>Echoes: effects, not causes</h2>"
        yield from lines([replace(line, says="") for line in room.echoes], room)
    yield from _listed("What followed", room.consequences)
    if room.missing_evidence:
        yield "<h2>Missing evidence</h2><ul>"
        for missing in room.missing_evidence:
            yield f"<li>{safe(missing.what)} → <code>{safe(missing.enable_with)}</code></li>"
        yield "</ul>"
    if room.durations:
        yield "<h2>Phases</h2>"
        yield from durations(room)
    if room.events:
        yield "<h2>Lines</h2>"
        yield from event_rows(room, prefix)
    clocks = [
        f"{each.instance}: {each.offset_s:+.3f} s ±{each.uncertainty_s:g} s, {each.why}"
        for each in room.clocks
        if each.offset_s is not None
    ]
    yield from _listed("Clocks", clocks)
    yield from _listed("Notes", room.notes)
    yield from _listed("Files", [file if name == file else f"{name}: {file}" for file, name in names.items()])
    yield "</section>"


def _renamed(room: Room, names: Mapping[str, str]) -> Room:
    """Files by their short names; the whole paths are listed once."""
    return replace(
        room,
        events=tuple(replace(step, file=names[step.file]) for step in room.events),
        evidence=tuple(replace(line, file=names[line.file]) for line in room.evidence),
        echoes=tuple(replace(line, file=names[line.file]) for line in room.echoes),
    )


def _head(room: Room, zone: dt.tzinfo | None) -> Iterator[str]:
    outcome = room.outcome.value
    yield f'<h1>Room {room.room} <span class="hex">0x{room.room:x}</span>'
    yield f'<span class="outcome {outcome}">{outcome}</span></h1>'
    pair = f"{room.prefill_requested or room.prefill_contacted or '?'} → {room.decode or '?'}"
    when = ""
    if room.began is not None:
        doubt = max((step.uncertainty_s for step in room.events), default=0.0)
        when = f", began {measures.moment(room.began, zone, doubt).isoformat(sep=' ')}"
        when += ", clocks tell whole seconds" if doubt >= measures.COARSE else ""
    yield f'<p class="sub">{safe(pair + when)}</p>'
    rids = ", ".join(f"{instance} {rid}" for instance, rid in room.rids.items())
    if rids:
        yield f'<p class="sub">rid <span class="mono">{safe(rids)}</span></p>'


def _verdict(room: Room) -> Iterator[str]:
    mark = MARKS[room.outcome.value]
    tone = {"green": "good", "red": "bad"}.get(mark.style, "doubt")
    yield f'<div class="verdict" style="--tone: var(--{tone})">'
    cause = room.cause
    if cause is not None:
        yield f'<p class="head">{safe(f"{cause.code} {cause.slug}: {cause.headline}")}</p>'
        yield f"<p>{safe(cause.why)}</p>" if cause.why else ""
    else:
        yield f'<p class="head">{safe(f"{room.outcome.value}: {mark.said}")}</p>'
    wrong = room.wrong_prefill
    if wrong is not None:
        yield '<div class="contact">'
        yield f'<span>POST</span><span class="to">→ {safe(wrong.requested)}</span>'
        yield f'<span class="said">{safe(waits(wrong))}</span>'
        yield f'<span>TransferInfo</span><span class="to wrong">→ {safe(wrong.contacted)}</span>'
        yield f'<span class="said">{safe(STRAY)}</span></div>'
    if room.fix:
        yield f'<div class="fix"><pre>{safe(room.fix)}</pre>'
        yield '<button class="copy" type="button" hidden>Copy</button></div>'
    yield "</div>"


def _listed(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{safe(sentence)}</li>" for sentence in sentences)
        yield "</ul>"
