"""The JSON contract that scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Callable

import jsonschema

from pdctl.render.trace import room_json
from pdctl.trace.room import Room
from tests.cases import for_each
from tests.render.trace import samples
from tests.render.trace.schema import SCHEMA


@for_each("make", [samples.wrong_prefill, samples.healthy, samples.blind], ids=lambda make: make.__name__)
def test_a_room_keeps_the_contract(make: Callable[[], Room]) -> None:
    jsonschema.validate(json.loads(room_json.to_json(make())), SCHEMA)


def test_a_selection_is_a_list_whatever_its_number() -> None:
    for rooms in ([], [samples.blind()], [samples.blind(), samples.healthy()]):
        told = json.loads(room_json.to_json_list(rooms))
        assert told["schema"] == "pdctl.room-list/1"
        assert [room["room"] for room in told["rooms"]] == [room.room for room in rooms]


def test_a_line_of_jsonl_is_a_room() -> None:
    lines = room_json.to_jsonl([samples.blind(), samples.wrong_prefill()]).split("\n")
    assert [json.loads(line)["outcome"] for line in lines] == ["unknown", "failed"]


def test_a_reader_of_doubles_gets_the_room_as_hex() -> None:
    told = json.loads(room_json.to_json(samples.wrong_prefill()))
    assert int(told["hex"], 16) == told["room"] == 5111113946003395278
