"""Contract `pdctl.room/1`: one room as JSON. Fields are only ever added."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pdctl.render.term import as_json
from pdctl.render.trace import wording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.trace.room import Evidence, Room, RoomStep

ROOM, ROOMS = "pdctl.room/1", "pdctl.room-list/1"


def to_json(room: Room) -> str:
    return dumped(document(room), indent=2)


def to_json_list(rooms: Sequence[Room]) -> str:
    """A selection is always a list, even of one room, so that the form does not depend on what was found."""
    return dumped({"schema": ROOMS, "rooms": [document(room) for room in rooms]}, indent=2)


def to_jsonl(rooms: Sequence[Room]) -> str:
    return "\n".join(dumped(document(room)) for room in rooms)


def dumped(value: object, indent: int | None = None) -> str:
    """JSON with text unescaped, unless a file name has bytes that are not UTF-8: then all non-ASCII is escaped."""
    text = as_json(value, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def ascii_json(text: str) -> str:
    """The same JSON for an ASCII-only stream; non-ASCII characters occur only in strings and are escaped."""
    return text if text.isascii() else "".join(each if each.isascii() else json.dumps(each)[1:-1] for each in text)


def document(room: Room) -> dict[str, object]:
    """The JSON document. `t`, `began` and `ended` are seconds since the epoch, `time` is RFC 3339 in UTC."""
    cause, gap, wrong = room.cause, room.gap, room.wrong_prefill
    return {
        "schema": ROOM,
        "room": room.room,
        "room_id": str(room.room),  # readers whose numbers are doubles (jq 1.6, JavaScript) round `room`
        "hex": f"0x{room.room:x}",
        "rids": dict(room.rids),
        "outcome": room.outcome.value,
        "prefill_requested": room.prefill_requested,
        "prefill_contacted": room.prefill_contacted,
        "decode": room.decode,
        "phase_reached": room.phase_reached.value if room.phase_reached else None,
        "cause": {
            "code": cause.code,
            "slug": cause.slug,
            "headline": cause.headline,
            "why": cause.why,
            "side": cause.side or None,
            "instance": cause.instance or None,
        }
        if cause
        else None,
        "began": room.began,
        "ended": room.ended,
        "open_until": room.open_until,
        "lanes": [{"instance": lane.instance, "role": lane.role, "why": lane.why} for lane in room.lanes],
        "events": [_event(step) for step in room.events],
        "durations": [
            {
                "name": each.name,
                "instance": each.instance,
                "start_s": each.start,
                "start_uncertainty_s": each.start_uncertainty_s,
                "seconds": each.seconds,
                "uncertainty_s": each.uncertainty_s,
                "bytes": each.bytes,
                "gb_s": each.gb_s,
            }
            for each in room.durations
        ],
        "gap": {
            "from": gap.after,
            "to": gap.before or None,
            "start_s": gap.start,
            "end_s": gap.end,
            "seconds": gap.seconds,
            "uncertainty_s": gap.uncertainty_s,
            "instance": gap.instance or None,
            "code": gap.code or None,
        }
        if gap
        else None,
        "wrong_prefill": {
            "requested": wrong.requested,
            "contacted": wrong.contacted,
            "by_elimination": wrong.by_elimination,
        }
        if wrong
        else None,
        "clocks": [
            {
                "instance": clock.instance,
                "offset_s": clock.offset_s,
                "uncertainty_s": clock.uncertainty_s,
                "why": clock.why,
            }
            for clock in room.clocks
        ],
        "evidence": [_line(line) for line in room.evidence],
        "echoes": [_line(line) for line in room.echoes],
        "missing_evidence": [
            {"what": missing.what, "enable_with": missing.enable_with} for missing in room.missing_evidence
        ],
        "consequences": list(room.consequences),
        "notes": list(room.notes),
        "known": dict(room.known or {}),
        "warm_up": room.warm_up,
        "canary": room.canary,
        "fix": room.fix or None,
    }


def _event(step: RoomStep) -> dict[str, object]:
    return {
        "instance": step.instance,
        "role": step.role,
        "rank": step.rank,
        "phase": step.phase.value if step.phase else None,
        "t": step.t,
        "time": None if step.t is None else wording.rfc3339(step.t),
        "uncertainty_s": step.uncertainty_s,
        "delta_s": step.delta_s,
        "file": step.file,
        "line": step.line,
        "text": step.text,
        "offset": step.offset,
        "row": step.row or None,
        "rid": step.rid or None,
        "echo": step.echo,
    }


def _line(line: Evidence) -> dict[str, object]:
    return {"instance": line.instance, "file": line.file, "line": line.line, "text": line.text, "says": line.says}
