"""What a line about one room proves: who has its request, who was contacted, how far it came."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Phase, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event

# What a prefill calls finished is its own half.
HALF = {Phase.FINISHED: Phase.TRANSFER}


def rooms(event: Event) -> tuple[int, ...]:
    """All rooms the line names: a batch has a list of them."""
    if event.room is not None:
        return (event.room,)
    return numerals.wholes(event.values.get("rooms", ""))


def rid(event: Event, room: int) -> str:
    """The request's id next to `room`; in a batch the lists of rooms and rids go together."""
    if event.rid:
        return event.rid
    names = re.findall(r"'([^']*)'", event.values.get("rids", ""))
    named = rooms(event)
    return names[named.index(room)] if room in named and len(names) == len(named) else ""


def requested(event: Event) -> bool:
    """Only a prefill that got the HTTP request writes this line about the room."""
    if event.role != "prefill" or (not event.room and not event.values.get("rooms")):
        return False
    return bool(event.rid or event.values.get("rids")) or event.proves(Sign.HAS_REQUEST)


def contacted(event: Event) -> bool:
    """Only a prefill that got the decode's page list writes this line about the room."""
    return event.role == "prefill" and event.proves(Sign.PAGE_LIST_ARRIVED)


def failed(event: Event) -> bool:
    """The room ended badly here; an abort notice of the other side is no more than an echo of its own failure."""
    return event.row.phase in (Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED)


def failed_on(events: Iterable[Event], role: str) -> Event | None:
    """The first line in which this side gives the room up; one that names only the request if there is no other."""
    found = [event for event in events if event.role == role and failed(event) and not notice(event)]
    return next((event for event in found if event.room), found[0] if found else None)


def notice(event: Event) -> bool:
    """Talk about an abort between the two sides, which the one that failed first began."""
    return event.proves(Sign.ABORT_TALK)


def reached(event: Event) -> Phase | None:
    """The furthest step of the room this line proves."""
    phase = event.row.phase
    if phase is None:
        return None
    if phase.ends and phase is not Phase.FINISHED:
        return event.row.reached
    if event.proves(Sign.REQUEST_FINISHED) and not answered(event):
        return Phase.RECEIVED
    if event.role == "prefill":
        return HALF.get(phase, phase)
    return phase


def answered(event: Event) -> bool:
    """`Finish:` of a request that was not cut short."""
    return event.proves(Sign.REQUEST_FINISHED) and finish(event) not in ("", "abort")


def finish(event: Event) -> str:
    """How a `Finish:` line, or its JSON form, says the request ended: stop, length, abort, …; "" when it does not."""
    said = event.values.get("finish", "")
    found = re.search(r"""['"]type['"]: ['"](\w+)""", said) or re.match(r"'(\w+)'", said)
    return found[1] if found else ""
