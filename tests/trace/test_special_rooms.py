"""Rooms that are no user's, numbers that are not only rooms, batches, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.engines.base import Phase
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_timed_out, engine, got_info, prefill_timed_out, received, sending
from tests.trace.recordings import library, logs
from tests.trace.routers import starting

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 7707449254856086911
LOGGED = ", log_requests=True"
RECORDED = "2p1d-missing-ports-info-log-requests-sgl058"  # has the warm-ups of three engines, and their health checks


def test_a_warm_up_is_no_users_room() -> None:
    recorded = library(logs(RECORDED))
    room = Tracer(recorded).trace(0)
    assert room.warm_up
    assert room.events
    assert (room.prefill_requested, room.prefill_contacted, room.decode, room.cause) == (None, None, None, None)
    assert [note.split()[0] for note in room.notes] == ["PD716"]
    assert 0 not in [one.room for one in room_summaries(Tracer(recorded))]


def test_each_data_parallel_rank_warms_up_in_a_room_of_its_own(tmp_path: Path) -> None:
    second = 2**62 + 1
    lines = [received(5, second, "warm", host="2.2.2.2"), received(9, ROOM, "users")]
    found = pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, *lines, more=f", tp_size=2, dp_size=2{LOGGED}"))
    assert [one.room for one in room_summaries(Tracer(found))] == [ROOM]


def test_a_probes_room_is_recognised_by_its_host(tmp_path: Path) -> None:
    lines = [received(5, ROOM, "probe", host="2.2.2.2")]
    found = pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, *lines, more=LOGGED))
    assert room_summaries(Tracer(found)) == ()


def test_room_zero_in_a_real_transfer_waits_for_ever(tmp_path: Path) -> None:
    """From 0.5.13 on a zero in the decode's row means that nothing was written yet."""
    room = pasted.room(
        tmp_path, 0, p0=engine("prefill", 30000, 8998, *got_info(11, 0)),
        d0=engine("decode", 30002, 8998, sending(11, 0), decode_timed_out(31, 0), more=", attn_cp_size=1"),
    )  # fmt: skip
    assert not room.warm_up
    assert room.cause is not None
    assert room.cause.code == "PD716"


def test_a_small_number_is_a_room_only_where_it_is_called_one(tmp_path: Path) -> None:
    """A client may choose room 42; most 42s in a log are something else."""
    other = (
        f"{at(12)} Prefill batch, #new-seq: 42, #new-token: 42, #cached-token: 42, token usage: 0.42, #queue-req: 42"
    )
    room = pasted.room(
        tmp_path, 42, p0=engine("prefill", 30000, 8998, *got_info(11, 42), other),
        d0=engine("decode", 30002, 8998, sending(11, 42), decode_timed_out(31, 42)),
    )  # fmt: skip
    assert len(room.events) == 4
    assert (room.prefill_contacted, room.decode) == ("p0", "d0")


def test_a_room_in_hex_is_the_same_room(tmp_path: Path) -> None:
    span = f"{at(11)} span pd_request bootstrap_room={ROOM:#x} started"
    room = pasted.room(tmp_path, ROOM, p0=engine("prefill", 30000, 8998, span, *got_info(11, ROOM)))
    assert any("span" in step.text for step in room.events)


def test_a_batch_names_its_rooms_in_a_list(tmp_path: Path) -> None:
    both = (
        f"{at(11)} Receive: obj=GenerateReqInput(rid=['first', 'second'], bootstrap_host=['127.0.0.1', '127.0.0.1'], "
        f"bootstrap_port=[8998, 8998], bootstrap_room=[{ROOM}, {ROOM + 1}], stream=False)"
    )
    files = {
        "p0": engine("prefill", 30000, 8998, both, more=LOGGED), "d0": engine("decode", 30002, 8998, both, more=LOGGED)
    }  # fmt: skip
    for number, name in ((ROOM, "first"), (ROOM + 1, "second")):
        room = pasted.room(tmp_path, number, **files)
        assert room.rids == {"p0": name, "d0": name}
        assert (room.prefill_requested, room.decode) == ("p0", "d0")


@pytest.mark.parametrize(("second", "wanted"), [(11, "PD201"), (911, None)])
def test_a_router_that_was_started_again_counts_as_it_was(tmp_path: Path, second: int, wanted: str | None) -> None:
    """Without ports until 02:10, with the right ones since."""
    again = starting((8998, 8999)).replace("02:00:00", "02:10:00")
    room = pasted.room(
        tmp_path, ROOM, router=[starting((None, None)), again],
        p0=engine("prefill", 30000, 8998, *got_info(second, ROOM)),
        p1=engine("prefill", 30001, 8999, prefill_timed_out(second + 20, ROOM)),
        d0=engine("decode", 30002, 8998, sending(second, ROOM), decode_timed_out(second + 20, ROOM)),
    )  # fmt: skip
    assert room.outcome is RoomOutcome.FAILED
    assert room.cause is not None
    assert (room.cause.code == "PD201") is (wanted == "PD201")


def test_a_room_nobody_names(tmp_path: Path) -> None:
    room = pasted.room(tmp_path, ROOM, p0=engine("prefill", 30000, 8998), d0=engine("decode", 30002, 8998))
    assert room.events == ()
    assert room.outcome is RoomOutcome.UNKNOWN
    assert room.missing_evidence
    assert any("no line of these logs names room" in note for note in room.notes)


def test_a_mangled_request_id_is_not_looked_for(tmp_path: Path) -> None:
    """A quote that was lost makes half a line the id: longer than anything that can be sought."""
    waits = (
        f"Prefill bootstrap failed for request rank=0 req.rid='{'x' * 5000}' req.bootstrap_room={ROOM} with exception x"
    )
    room = pasted.room(tmp_path, ROOM, p0=engine("prefill", 30000, 8998, f"[2026-11-21 02:06:24] {waits}"))
    assert room.room == ROOM


@pytest.mark.parametrize(
    ("how", "wanted"), [("length", RoomOutcome.OK), ("stop", RoomOutcome.OK), ("abort", RoomOutcome.FAILED)]
)
def test_a_request_logged_as_json_ends_as_it_says(tmp_path: Path, how: str, wanted: RoomOutcome) -> None:
    """--log-requests-format json: sglang 0.5.23 `srt/utils/request_logger.py`."""

    def said(second: int, event: str, rest: str) -> str:
        head = f'{{"timestamp": "2026-11-21T02:00:{second:02d}.123456", "event": "request.{event}", "rid": "json-1", '
        return f'{at(second)} {head}"obj": {{"bootstrap_host": "127.0.0.1", "bootstrap_room": {ROOM}}}{rest}}}'

    out = f', "out": {{"meta_info": {{"finish_reason": {{"type": "{how}", "length": 4}}, "e2e_latency": 0.1}}}}'
    lines = [said(5, "received", ""), said(7, "finished", out)]
    room = pasted.room(
        tmp_path, ROOM, p0=engine("prefill", 30000, 8998, *lines, more=LOGGED),
        d0=engine("decode", 30002, 8998, *lines, more=LOGGED),
    )  # fmt: skip
    assert room.outcome is wanted


def test_every_room_of_a_batch_has_the_routers_lines(tmp_path: Path) -> None:
    """A router names all rooms of a batch in one line, the first apart from the others."""
    rooms = (2592047679407040, 4784726555517782, 4311647488222734)
    where = (
        f"room={','.join(map(str, rooms))} rid=r1 request_id=r1 attempt=1 prefill=http://127.0.0.1:30000 "
        "decode=http://127.0.0.1:30002"
    )
    router = [
        f"[2026-11-23 19:32:48.335] Dispatch {where} bootstrap=127.0.0.1:8998 path=/generate",
        f"[2026-11-23 19:32:48.386] Finish {where} status=200 outcome=ok prefill_ms=50.6 first_byte_ms=50.6 "
        "total_ms=50.7",
    ]
    tracer = Tracer(pasted.library(tmp_path, router=router))
    assert {one.room: one.outcome for one in room_summaries(tracer)} == dict.fromkeys(rooms, RoomOutcome.OK)
    for number in rooms:
        room = tracer.trace(number)
        assert [step.phase for step in room.events] == [Phase.DISPATCHED, Phase.FINISHED]
