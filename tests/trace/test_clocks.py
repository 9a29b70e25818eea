"""Hosts whose clocks disagree: only what cannot be tells, and what is corrected is said aloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trace import pasted
from tests.trace.engines import decode_timed_out, engine, got_info, sending

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


def test_inside_one_second_a_file_keeps_its_order_and_two_files_none(tmp_path: Path) -> None:
    """The bytes of a file are the only order there is; both lines of the prefill stand as it wrote them."""
    room = apart(tmp_path, 0)
    prefill = [step for step in room.events if step.instance == "p0"]
    assert [step.offset for step in prefill] == sorted(step.offset for step in prefill)
    assert all(step.uncertainty_s == 1.0 for step in room.events)
