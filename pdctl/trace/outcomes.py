"""How the room ended, and how far it had come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Phase, Sign
from pdctl.trace import signs
from pdctl.trace.room import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.logs.event import Event
    from pdctl.trace.case import Case, Finding
    from pdctl.trace.glimpses import Glimpse

# Whoever had the room was gone before it ended.
FATAL = frozenset({"PD704", "PD705", "PD707", "PD709", "PD302", "PD303", "PD304", "PD306", "PD308"})
CLIENT_LEFT = "PD706"


def outcome(case: Case, rooms: Mapping[int, Glimpse], finding: Finding | None) -> tuple[Outcome, Event | None]:
    """The outcome, and the line that shows it where one does."""
    if case.warm_up:
        return Outcome.UNKNOWN, None
    turned_away = next((event for event in case.story.by("router") if event.row.phase is Phase.REFUSED), None)
    if turned_away is not None:
        return Outcome.REFUSED, turned_away
    ends = (Phase.FAILED, Phase.ABORTED)
    refused = next((event for event in case.story.by("router") if event.row.phase in ends), None)
    if refused is not None and refused.row.phase is Phase.ABORTED and case.done is not None:
        refused = None  # the client left when its answer was complete
    if finding is not None and finding.code == CLIENT_LEFT:
        return Outcome.ABORTED, case.decode_failed or case.prefill_failed or refused
    broken = case.decode_failed or case.prefill_failed or refused
    if broken is not None:
        return Outcome.FAILED, broken
    if case.done is not None:
        return Outcome.OK, case.done
    if finding is not None and finding.code in FATAL and case.story.events:
        return Outcome.FAILED, None
    pending = _pending(case, rooms)
    if pending is not None:
        return Outcome.HUNG, pending
    return (Outcome.INCOMPLETE, None) if _cut(case) else (Outcome.UNKNOWN, None)


def _pending(case: Case, rooms: Mapping[int, Glimpse]) -> Event | None:
    """A shutdown found the room's request still there: by its id, or because no other can be meant."""
    for name in {event.instance for event in case.story.events if event.role in ("prefill", "decode")}:
        for event in case.around:
            if event.instance != name or not event.proves(Sign.DRAINED):
                continue
            left = event.values.get("left", "0")
            if any(rid in event.values.get("rids", "") for rid in case.story.rids.get(name, ())):
                return event
            open_rooms = [one.room for one in rooms.values() if one.decode == name and not (one.done or one.failed)]
            if left.isdigit() and left == str(len(open_rooms)) and case.story.room in open_rooms:
                return event
    return None


def _cut(case: Case) -> bool:
    """The log of its decode ends, untold, right behind the room's last line."""
    span, decode = case.story.span, case.decode
    if span is None or decode is None or decode.clean or not case.story.by("decode"):
        return False
    return decode.ends_behind(span[1])


def phase_reached(case: Case, ended: Outcome) -> Phase | None:
    """The furthest step any line proves; an end is no step, but a good one is the last."""
    if ended is Outcome.OK:
        return Phase.FINISHED
    found = [phase for event in case.story.events if (phase := signs.reached(event)) is not None]
    if case.who.requested is not None:
        found.append(Phase.RECEIVED)
    if case.who.contacted is not None:
        found.append(Phase.HANDSHAKE)
    if case.who.arrived is not None:
        found.append(Phase.DECODE)
    if case.joined.attempts:
        found.append(Phase.DISPATCHED)
    steps = [phase for phase in found if not phase.ends]
    return max(steps, key=lambda phase: phase.order, default=None)
