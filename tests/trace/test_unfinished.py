"""A stream is answered when it begins: rooms are not called fine while some answer was cut, and no line tells whose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.trace.room import RoomOutcome
from tests.trace import pasted
from tests.trace.engines import at, decode_failed, engine, got_info, sending
from tests.trace.routers import P0, answered, came, left, sent, starting

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM = 7707449254856086911
OTHER = "0f3a508ed39b4c6c9db20b4beddf121a"
ABORT = f"{at(15)} Abort running request. req.rid='{OTHER}'"
BATCH = (
    f"{at(14)} Decode batch, #running-req: {{}}, #token: 71, token usage: 0.02, pre-allocated usage: 0.00, "
    "#prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): 3.55, "
    "#queue-req: 0"
)


def answered_room(folder: Path, *lines: str, until: int = 1800) -> Room:
    """The router has read the prefill's whole answer, and the beginning of the decode's."""
    router = [starting(), came(10, "a"), *sent(10, "a", P0), *answered(12, "a"), left(12, "a")]
    return pasted.room(
        folder, ROOM, router=router, p0=engine("prefill", 30000, 8998, *got_info(11, ROOM)),
        p1=engine("prefill", 30001, 8999), d0=engine("decode", 30002, 8998, sending(11, ROOM), *lines, until=until),
    )  # fmt: skip


def test_an_answer_nobody_cut_is_fine(tmp_path: Path) -> None:
    room = answered_room(tmp_path)
    assert (room.outcome, room.prefill_requested) == (RoomOutcome.OK, "p0")


def test_somebodys_answer_was_cut(tmp_path: Path) -> None:
    room = answered_room(tmp_path, ABORT)
    assert room.outcome is RoomOutcome.UNKNOWN
    assert room.prefill_requested == "p0"
    assert room.missing_evidence


def test_another_rooms_answer_was_cut(tmp_path: Path) -> None:
    theirs = decode_failed(16, ROOM + 1, "Aborted by AbortReq.").replace(f"{ROOM + 1:032x}", OTHER)
    assert answered_room(tmp_path, ABORT, theirs).outcome is RoomOutcome.OK


@pytest.mark.parametrize(("running", "until", "outcome"), [(1, 15, "incomplete"), (0, 15, "ok"), (1, 1800, "ok")])
def test_a_log_that_stops_while_something_runs(tmp_path: Path, running: int, until: int, outcome: str) -> None:
    assert answered_room(tmp_path, BATCH.format(running), until=until).outcome.value == outcome
