"""Logs whose lines carry no time, as a collector leaves them: what a line quotes dates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.diagnose import diagnose
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import decode_failed, engine, received, rid

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 4079256317657669
QUOTES = (
    "[2031-02-03 04:05:06] is what the client wrote",
    "2031-03-03T00:00:00Z DEBUG hyper::client: so is this",
)
UNFETCHED = "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:9999"


def without_times(*lines: str) -> list[str]:
    return [line.split("] ", 1)[1] for line in engine("decode", 30002, 8998, *lines)]


def decode_log() -> list[str]:
    known = without_times(received(10, ROOM, rid(ROOM)), decode_failed(12, ROOM, UNFETCHED, "handshake"))
    alive = ['INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'] * 40
    return [*known, *QUOTES, *alive]


def test_a_time_that_a_line_quotes_is_not_when_it_was_written(tmp_path: Path) -> None:
    found = diagnose(pasted.library(tmp_path, d0=decode_log()))
    assert [(one.began, one.ended) for one in found.sources] == [(None, None)]


def test_no_line_of_a_log_without_times_is_in_a_period(tmp_path: Path) -> None:
    """The quoted times were taken for those of all lines behind them."""
    pasted.library(tmp_path, d0=decode_log())
    library = Library(open_logs([str(tmp_path / "d0.log")]), since=1.9e9, until=2e9, index=False)
    assert library.empty


@pytest.mark.parametrize("stamped", [False, True])
def test_a_log_with_times_keeps_them_beside_quoted_ones(tmp_path: Path, stamped: bool) -> None:
    lines = engine("decode", 30002, 8998, received(10, ROOM, rid(ROOM)), *(QUOTES if stamped else ()))
    found = diagnose(pasted.library(tmp_path, d0=lines))
    assert found.sources[0].began is not None


def test_a_room_without_times_whose_prefill_could_not_be_looked_up_is_traced(tmp_path: Path) -> None:
    tracer = Tracer(pasted.library(tmp_path, d0=decode_log()))
    assert [one.room for one in room_summaries(tracer)] == [ROOM]
    assert tracer.trace(ROOM).outcome.value == "failed"
