"""Every room in a stretch of the logs, as far as its own lines tell: what matching needs of the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace import signs
from pdctl.trace.story import waited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment


@dataclass(slots=True)
class Glimpse:
    """first: its first line of an engine, written in [first, first + coarse); failed: when its decode gave it up.

    early: that line shows it on its way; else it may have begun long before. done: its decode finished it.
    decode, requested: instances, by lines that name them.
    """

    room: int
    first: float
    coarse: float
    last: float
    early: bool
    decode: str | None = None
    requested: str | None = None
    failed: float | None = None
    done: bool = False


def glimpses(events: Iterable[Event], deployment: Deployment) -> dict[int, Glimpse]:
    found: dict[int, Glimpse] = {}
    for event in events:
        if event.t is None or event.role not in ("prefill", "decode"):
            continue
        for room in signs.rooms(event):
            if room in deployment.warm_ups:
                continue
            # A time-out tells when the wait began; other ends do not.
            begun, early = event.t - waited(event), bool(waited(event)) or not _ends(event)
            seen = found.setdefault(room, Glimpse(room, begun, event.uncertainty_s, event.t, early))
            if begun < seen.first:
                seen.first, seen.coarse, seen.early = begun, event.uncertainty_s, early
            seen.last = max(seen.last, event.t)
            _note(seen, event, deployment)
    short = _cut_short(found)
    return {room: seen for room, seen in found.items() if room not in short}


def _cut_short(rooms: Iterable[int]) -> frozenset[int]:
    """Numbers another one begins with: of a line that ends within the number of its room."""
    spelt = sorted(map(str, rooms))
    return frozenset(int(short) for short, long in pairwise(spelt) if long.startswith(short))


def _ends(event: Event) -> bool:
    return event.phase is None or event.phase.ends or signs.notice(event)


def _note(seen: Glimpse, event: Event, deployment: Deployment) -> None:
    if event.role == "decode":
        seen.decode = event.instance
        if signs.failed(event) and not signs.notice(event):
            seen.failed = event.t if seen.failed is None else seen.failed
        if event.proves(Sign.DECODE_TIMES) or event.proves(Sign.REQUEST_FINISHED):
            seen.done = True
    elif signs.requested(event):
        seen.requested = event.instance
    agent = event.values.get("agent")
    if agent and event.role == "prefill" and seen.decode is None:
        owner = deployment.by_agent(agent)
        seen.decode = owner.name if owner else None
