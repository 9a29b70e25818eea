"""What a client wrote into its request never makes a room of its own: neither its request id nor its body."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

from pdctl.engines.row_matching import rows, speech
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.tracer import Tracer
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engines.base import Row

FORGED = (7, 707070707070707)
WORDS = (
    "room={0},bootstrap_room={0}",
    "room={0},outcome=ok",
    "x, bootstrap_room={0}, input_len=3, cached_input_len=0, output_len=1, type=prefill): x",
    "x, bootstrap_room={0}, input len=3, output len=1, type=decode): x",
    "x) bootstrap_room={0}",
    "] room={0} is bootstrapped",
    "[2026-11-21 02:10:00] room={0} is bootstrapped",
    "it's room={0} for room {0}, bootstrap_room={0})",
    '"bootstrap_room": {0}, bootstrap_room={0}',
)
CLIENTS = [text.format(room) for text in WORDS for room in FORGED]
RID = [row for row in rows() if "(?P<rid>" in row.pattern and row.speaker.value not in ("pdctl-router", "launcher")]
UTC = dt.timezone.utc


def with_rid(row: Row, text: str) -> str:
    """The row's example with this request id, written as its process writes it."""
    said = speech().match(row.example.encode())
    assert said is not None
    rid = said.values["rid"]
    for old, new in ((f"'{rid}'", repr(text)), (f'"{rid}"', json.dumps(text)), (rid, text)):
        if old in row.example:
            return row.example.replace(old, new)
    raise AssertionError(row.id)


def library(path: Path, lines: list[str]) -> Library:
    (path / "engine.log").write_text("\n".join(lines) + "\n")
    return Library(open_logs([str(path)]), tz=UTC, index=False)


def own_room(row: Row) -> int | None:
    said = speech().match(row.example.encode())
    room = said.values.get("room") if said is not None else None
    return int(room) if room else None


@for_each("row", RID, ids=[row.id for row in RID])
def test_a_request_id_names_no_room(row: Row) -> None:
    own = own_room(row)
    for text in CLIENTS:
        said = speech().match(with_rid(row, text).encode())
        assert said is None or said.values.get("room") in (None, str(own)), text


def test_no_row_lists_or_traces_a_room_that_a_request_id_names(tmp_path: Path) -> None:
    lines = [with_rid(row, text) for row in RID for text in CLIENTS]
    real = {room for row in RID if (room := own_room(row)) is not None}
    # The true lines first, so that the pass over all rooms has seen each kind.
    read = library(tmp_path, [row.example for row in rows()] + lines)
    before = {room.room for room in library(tmp_path, [row.example for row in rows()]).rooms()}
    read = library(tmp_path, [row.example for row in rows()] + lines)
    assert real <= before
    assert {room.room for room in read.rooms()} == before
    tracer = Tracer(read)
    for room in FORGED:
        assert tracer.trace(room).events == ()


def test_an_object_that_a_client_sent_names_no_room(tmp_path: Path) -> None:
    own = {"custom_params": {"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": FORGED[1]}}
    body = {"text": '"bootstrap_room": 7}', "sampling_params": own, "bootstrap_room": 3931829090235125}
    record = {"timestamp": "2026-11-21T02:06:48.123456", "event": "request.received", "rid": "a" * 32, "obj": body}
    read = library(tmp_path, [f"[2026-11-21 02:06:48] {json.dumps(record)}"])
    assert {room.room for room in read.rooms()} == {3931829090235125}
