"""The JSON that trace-room prints, as a schema."""

from __future__ import annotations

from pdctl.trace.room import RoomOutcome

NAME = {"type": ["string", "null"]}
TIME = {"type": ["number", "null"]}
SCHEMA = {
    "type": "object",
    "required": [
        "schema", "room", "rids", "outcome", "prefill_requested", "prefill_contacted", "decode", "phase_reached",
        "cause", "events", "evidence", "missing_evidence", "fix",
    ],
    "properties": {
        "schema": {"const": "pdctl.room/1"},
        "room": {"type": "integer", "minimum": 0},
        "rids": {"type": "object", "additionalProperties": {"type": "string"}},
        "outcome": {"enum": [one.value for one in RoomOutcome]},
        "prefill_requested": NAME,
        "prefill_contacted": NAME,
        "decode": NAME,
        "phase_reached": NAME,
        "cause": {
            "type": ["object", "null"],
            "required": ["code", "slug", "headline"],
            "properties": {"code": {"pattern": "^PD[0-9]{3}$"}, "slug": {"pattern": "^[a-z0-9-]+$"}},
        },
        "events": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["instance", "rank", "phase", "t", "uncertainty_s", "file", "line", "text"],
                "properties": {
                    "instance": {"type": "string"},
                    "rank": {"type": "string"},
                    "phase": NAME,
                    "t": TIME,
                    "time": {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
                    "uncertainty_s": {"type": "number", "minimum": 0},
                    "file": {"type": "string"},
                    "line": {"type": "integer", "minimum": 1},
                    "text": {"type": "string"},
                },
            },
        },
        "evidence": {
            "type": "array",
            "items": {"type": "object", "required": ["instance", "file", "line", "text"]},
        },
        "missing_evidence": {
            "type": "array",
            "items": {"type": "object", "required": ["what", "enable_with"]},
        },
        "fix": NAME,
    },
}  # fmt: skip
