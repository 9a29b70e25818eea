"""Hosts whose clocks disagree: only what cannot be tells, and what is corrected is said aloud."""

from __future__ import annotations

import datetime as dt
import io
from typing import TYPE_CHECKING

import pytest

from pdctl.render.diagnosis_view import show
from pdctl.render.term import Term
from pdctl.render.trace import wording
from pdctl.trace.diagnose import diagnose
from tests.trace import pasted
from tests.trace.engines import at, decode_timed_out, engine, finished, got_info, received, rid, sending

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM = 7707449254856086911


def apart(folder: Path, seconds: int) -> Room:
    """The prefill's clock is that much ahead."""
    return pasted.room(
        folder, ROOM, p0=engine("prefill", 30000, 8998, *got_info(100 + seconds, ROOM)),
        d0=engine("decode", 30002, 8998, sending(100, ROOM), decode_timed_out(120, ROOM)),
    )  # fmt: skip


@pytest.mark.parametrize("seconds", [0, 1, -1])
def test_what_whole_seconds_explain_is_no_distance(tmp_path: Path, seconds: int) -> None:
    assert apart(tmp_path, seconds).clocks == ()


@pytest.mark.parametrize("seconds", [60, -60, 7])
def test_a_message_takes_no_minute_and_does_not_come_before_it_was_sent(tmp_path: Path, seconds: int) -> None:
    room = apart(tmp_path, seconds)
    (clock,) = room.clocks
    assert clock.offset_s is not None
    ahead = clock.offset_s if clock.instance == "p0" else -clock.offset_s
    assert abs(ahead - seconds) <= clock.uncertainty_s
    assert "transfer-info-sent" in clock.why
    by_name = {step.instance: step.delta_s for step in reversed(room.events)}
    assert by_name["p0"] == pytest.approx(by_name["d0"], abs=2.0)
    assert room.ended is not None
    assert room.began is not None
    assert room.ended - room.began == pytest.approx(20.0, abs=2.0)


@pytest.mark.parametrize("outcome", ["failed", "ok"])
def test_the_deployments_report_names_the_clock_that_a_rooms_report_names(tmp_path: Path, outcome: str) -> None:
    """Of rooms that went well, too: no log of theirs can be read beside another's while it is off."""
    ends = decode_timed_out(120, ROOM) if outcome == "failed" else finished(101, ROOM, rid(ROOM))
    lines = [received(99, ROOM, rid(ROOM)), sending(100, ROOM), ends]
    files = {
        "p0": engine("prefill", 30000, 8998, *got_info(136, ROOM), more=", log_requests=True"),
        "d0": engine("decode", 30002, 8998, *lines, more=", log_requests=True"),
    }
    (of_room,) = pasted.room(tmp_path, ROOM, **files).clocks
    told = diagnose(pasted.library(tmp_path, **files))
    assert told.tally.rooms == {outcome: 1}
    (clock,) = told.clocks
    assert clock[:3] == of_room[:3]
    assert clock.offset_s is not None
    screen = io.StringIO()
    show(told, Term(screen), dt.timezone.utc)
    assert f"clock: {clock.instance} {clock.offset_s:+.3f} s" in screen.getvalue()


def test_inside_one_second_a_file_keeps_its_order_and_two_files_none(tmp_path: Path) -> None:
    """The bytes of a file are the only order there is; both lines of the prefill stand as it wrote them."""
    room = apart(tmp_path, 0)
    prefill = [step for step in room.events if step.instance == "p0"]
    assert [step.offset for step in prefill] == sorted(step.offset for step in prefill)
    assert all(step.uncertainty_s == 1.0 for step in room.events)


def column(room: Room) -> list[tuple[str, float | None, float]]:
    return [(step.row, step.delta_s, step.uncertainty_s) for step in room.events]


def test_whole_seconds_next_to_milliseconds_make_one_column_of_whole_seconds(tmp_path: Path) -> None:
    """Our router's .530 and SGLang's second: subtracted, the request would come before it was sent."""
    said = (
        f"[2026-11-21 02:00:11.530] Dispatch room={ROOM} rid=r1 request_id=r1 attempt=1 prefill=http://127.0.0.1:30000 "
        "decode=http://127.0.0.1:30002 bootstrap=127.0.0.1:8998 path=/generate"
    )
    start = (
        "[2026-11-21 02:00:01.000] Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']"
    )
    prefill = engine("prefill", 30000, 8998, received(11, ROOM, rid(ROOM)), *got_info(12, ROOM))
    decode = engine("decode", 30002, 8998, received(11, ROOM, rid(ROOM)), sending(11, ROOM))
    room = pasted.room(tmp_path, ROOM, router=[start, said], p0=prefill, d0=decode)
    assert column(room)[0] == ("dispatch", 0.0, 1.0)
    assert {doubt for _, _, doubt in column(room)} == {1.0}
    assert all(delta == int(delta) for _, delta, _ in column(room) if delta is not None)
    assert room.events[0].t is not None
    assert room.events[0].t % 1 == pytest.approx(0.53)  # what the line says is kept


def test_an_exact_start_stands_in_the_column_of_its_rooms_clock(tmp_path: Path) -> None:
    """entry_time tells milliseconds, the stamps of the same room do not: +0.9 s would not be after +0 s."""
    times = (
        f"{at(12)} ReqTimeStats(rid={rid(ROOM)}, bootstrap_room={ROOM}, input_len=5, cached_input_len=0, output_len=8, "
        "type=decode): prealloc_queue_duration=13.96ms, transfer_duration=4.60ms, entry_time=1795226411.930"
    )
    decode = engine("decode", 30002, 8998, received(11, ROOM, rid(ROOM)), times)
    room = pasted.room(tmp_path, ROOM, d0=decode)
    assert [wording.began(one) for one in room.durations] == ["+0s ±1s"] * 2


def test_milliseconds_everywhere_stay_milliseconds(tmp_path: Path) -> None:
    lines = [
        received(11, ROOM, rid(ROOM)).replace("02:00:11", "02:00:11.250"),
        sending(11, ROOM).replace(":11", ":11.750"),
    ]
    room = pasted.room(tmp_path, ROOM, d0=engine("decode", 30002, 8998, *lines))
    assert [(delta, doubt) for _, delta, doubt in column(room)] == [(0.0, 0.001), (0.5, 0.001)]
