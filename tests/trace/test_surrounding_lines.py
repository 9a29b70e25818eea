"""What follows from the lines around rooms is worked out once, not once per room: strangers can make many rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.trace.case import SurroundingLines
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_timed_out, engine, got_info, received, rid, sending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from pdctl.logs.event import Event

FIRST = 4652991996273247


def broken(number: int) -> tuple[list[str], list[str]]:
    """The lines of both engines about a room that the decode gave up."""
    room, second = FIRST + number, 40 + 2 * number
    prefill = [received(second, room, rid(room)), *got_info(second, room)]
    return prefill, [received(second, room, rid(room)), sending(second, room), decode_timed_out(second + 20, room)]


def passes(rooms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often all lines are gone through to list this many rooms that broke."""
    lines = [broken(number) for number in range(rooms)]
    prefill = sorted(line for one, _ in lines for line in one)
    decode = sorted(line for _, one in lines for line in one)
    router = f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin prefill=[] decode=[]"
    tmp_path.mkdir()
    library = pasted.library(
        tmp_path,
        router=[router],
        p0=engine("prefill", 30000, 8998, *prefill),
        d0=engine("decode", 30002, 8998, *decode),
    )
    gone_through = 0

    def counted(self: SurroundingLines) -> Iterator[Event]:
        nonlocal gone_through
        gone_through += 1
        return tuple.__iter__(self)

    with monkeypatch.context() as patch:
        patch.setattr(SurroundingLines, "__iter__", counted, raising=False)
        found = room_summaries(Tracer(library))
    assert len(found) == rooms
    assert all(one.outcome.value == "failed" for one in found)
    return gone_through


def test_a_room_more_costs_few_passes_over_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = passes(10, tmp_path / "few", monkeypatch), passes(60, tmp_path / "many", monkeypatch)
    assert few > 0, "the passes were counted"
    assert many - few <= 3 * 50, f"{few} passes for 10 rooms, {many} for 60"


def test_what_was_worked_out_is_kept() -> None:
    lines, calls = SurroundingLines(), []
    assert [lines.once("key", lambda: calls.append(1) or len(calls)) for _ in range(3)] == [1, 1, 1]
