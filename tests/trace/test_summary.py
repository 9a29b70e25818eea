"""`pdctl rooms`: a row says what a trace says; where logs are too large for that, less and nothing else."""

from __future__ import annotations

import pytest

from pdctl.trace import summaries
from pdctl.trace.room import RoomOutcome, RoomSummary
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.engines import decode_timed_out, engine, got_info, sending
from tests.trace.recordings import SCENARIOS, library, logs, rows, tracer, truth

ROOM = 7707449254856086911


@for_each("scenario", SCENARIOS)
def test_a_row_says_what_a_trace_says(scenario: str) -> None:
    for one in rows(scenario):
        room = tracer(scenario).trace(one.room)
        assert (one.prefill, one.decode) == (room.prefill_requested, room.decode)
        assert (one.outcome, one.phase_reached) == (room.outcome, room.phase_reached)
        assert one.code == (room.cause.code if room.cause else "")
        assert one.lines > 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_of_large_logs_it_says_less_and_nothing_else(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "WHOLE", -1)
    for one in summaries.room_summaries(Tracer(library(logs(scenario)))):
        happened = truth(scenario).get(str(one.room))
        if happened is None:  # a request nobody wrote down: a client's that was not part of the recording
            continue
        assert one.prefill in (happened["prefill_requested"], None)
        assert one.decode in (happened["decode"], None)
        assert one.outcome.value in (happened["outcome"], "unknown")
        assert one.code in (happened["cause"], "")


def test_rooms_of_large_logs_that_say_enough_are_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "WHOLE", -1)
    found = summaries.room_summaries(Tracer(library(logs("2p1d-healthy-info-log-requests-sgl0523"))))
    fine = [one for one in found if one.outcome is RoomOutcome.OK]
    assert len(fine) == len(found) - 1  # one client left in the middle
    assert all(one.prefill and one.decode and one.seconds is not None for one in fine)
    (broken,) = {one.code for one in summaries.room_summaries(Tracer(library(logs("2p1d-missing-ports-info-sgl0523"))))}
    assert broken == "PD201"


def test_they_come_in_the_order_of_their_first_lines() -> None:
    found = summaries.room_summaries(Tracer(library(logs("2p1d-healthy-debug-sgl0518"))))
    starts = [one.first_seen for one in found if one.first_seen is not None]
    assert len(starts) == len(found)
    assert starts == sorted(starts)


def test_a_wait_counts_from_when_it_began(tmp_path: pytest.TempPathFactory) -> None:
    """At INFO a room's first line is the end of its wait."""
    found = pasted.library(tmp_path, d0=engine("decode", 30002, 8998, decode_timed_out(420, ROOM, 300)))  # type: ignore[arg-type]
    assert [one.seconds for one in summaries.room_summaries(Tracer(found))] == [300.0]


def test_beyond_so_many_rooms_their_own_lines_must_do(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "TRACED", 1)
    rooms = [ROOM, ROOM + 1]
    found = pasted.library(
        tmp_path,  # type: ignore[arg-type]
        p0=engine("prefill", 30000, 8998, *(line for room in rooms for line in got_info(11, room))),
        d0=engine(
            "decode", 30002, 8998, *(sending(11, room) for room in rooms), decode_timed_out(31, ROOM)
        ),
    )  # fmt: skip
    by_room: dict[int, RoomSummary] = {one.room: one for one in summaries.room_summaries(Tracer(found))}
    assert by_room[ROOM].outcome is RoomOutcome.FAILED
    assert by_room[ROOM].seconds == 20.0
    assert by_room[ROOM + 1].outcome is RoomOutcome.UNKNOWN
