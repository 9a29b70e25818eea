"""The JSON contract that scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Callable

import jsonschema
import pytest

from pdctl.render.trace import document
from pdctl.trace.room import Outcome, Room
from tests.render.trace import samples

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
        "outcome": {"enum": [one.value for one in Outcome]},
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


@pytest.mark.parametrize(
    "make", [samples.wrong_prefill, samples.healthy, samples.blind], ids=lambda make: make.__name__
)
def test_a_room_keeps_the_contract(make: Callable[[], Room]) -> None:
    jsonschema.validate(json.loads(document.to_json(make())), SCHEMA)


def test_a_selection_is_a_list_whatever_its_number() -> None:
    for rooms in ([], [samples.blind()], [samples.blind(), samples.healthy()]):
        told = json.loads(document.to_json_list(rooms))
        assert told["schema"] == "pdctl.room-list/1"
        assert [room["room"] for room in told["rooms"]] == [room.room for room in rooms]


def test_a_line_of_jsonl_is_a_room() -> None:
    lines = document.to_jsonl([samples.blind(), samples.wrong_prefill()]).split("\n")
    assert [json.loads(line)["outcome"] for line in lines] == ["unknown", "failed"]


def test_a_reader_of_doubles_gets_the_room_as_hex() -> None:
    told = json.loads(document.to_json(samples.wrong_prefill()))
    assert int(told["hex"], 16) == told["room"] == 5111113946003395278
