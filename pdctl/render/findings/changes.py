"""What `doctor --watch` prints: only what opened or was resolved, as lines or as a JSON event feed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.render.findings import document, text
from pdctl.render.trace.document import dumped
from pdctl.render.visible import visible

if TYPE_CHECKING:
    from pdctl.doctor.watch import Watched
    from pdctl.render.term import Term


def show(watched: Watched, term: Term) -> None:
    stamp = time.strftime("%H:%M:%S")
    for done in watched.resolved:
        mark = term.style(term.symbol("✓", "+"), "green", "bold")
        where = f"  {visible(done.finding.instance, term)}" if done.finding.instance else ""
        name = f"{done.finding.code} {done.finding.slug}{where}"
        term.write(f"{stamp} {mark} resolved after {done.seconds:.0f} s: {name}")
    for found in watched.opened:
        term.write(stamp)
        text.finding(found, term)


def to_lines(watched: Watched) -> str:
    """`{"event": "opened"|"resolved", "time", …finding}`, one per line; empty when nothing changed."""
    now = round(time.time(), 3)
    events: list[dict[str, object]] = [
        {"event": "resolved", "time": now, "open_seconds": round(done.seconds, 3), **document.finding(done.finding)}
        for done in watched.resolved
    ]
    events += [{"event": "opened", "time": now, **document.finding(found)} for found in watched.opened]
    return "\n".join(map(dumped, events))
