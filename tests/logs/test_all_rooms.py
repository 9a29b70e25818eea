from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pdctl.engines.base import Sign
from pdctl.engines.row_matching import speech
from pdctl.logs import all_rooms, scan
from pdctl.logs.event import RawLine
from pdctl.logs.library import Library
from pdctl.logs.source import Log, open_logs

Real = Callable[..., Library]
SCENARIOS = (
    "2p1d-missing-ports-debug-sgl0518",
    "1p1d-tp1-tp2-info-timestats-sgl0523",
    "1p1d-dp2-tp1-debug-sgl058",
    "2p1d-healthy-info-log-requests-sgl0523",
    "1p1d-wrong-port-debug-sgl058",
    "pdctl-killed-router",  # requests that were finished and requests that were cut short: only the end of a line tells
)
UTC = dt.timezone.utc


def told(room: all_rooms.RoomSeen) -> set[tuple[str, str]]:
    return {(seen.instance, row.id) for seen in room.line_kinds.seen for row in seen.rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_one_pass_sees_what_each_room_asked_for_alone_shows(real: Real, scenario: str) -> None:
    library = real(scenario, tz=UTC)
    found = {room.room: room for room in library.rooms()}
    assert found
    for number, room in found.items():
        events = [event for event in library.of_room(number) if event.row.id and event.room == number]
        assert told(room) == {(event.instance, event.row.id) for event in events}, number
        times = [event.t for event in events if event.t is not None]
        assert (room.first, room.last, room.lines) == (min(times), max(times), len(events)), number


def test_the_same_in_processes_of_their_own(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[0]
    here = {room.room: (room.first, room.last, room.lines, told(room)) for room in real(scenario, tz=UTC).rooms()}
    monkeypatch.setattr(all_rooms.scan, "PARALLEL", 0)
    monkeypatch.setattr(all_rooms.scan, "thread_count", lambda size: 2)
    monkeypatch.setattr(all_rooms, "IN_MEMORY", 0)
    there = {room.room: (room.first, room.last, room.lines, told(room)) for room in real(scenario, tz=UTC).rooms()}
    assert there == here


def test_rooms_with_the_same_story_share_it(tmp_path: Path, environ: dict[str, str]) -> None:
    lines = "".join(
        f"[2026-11-21 02:00:{at % 60:02d} TP0] got info room={10**17 + at} agent_name='a' required_dst_info_num=1\n"
        f"[2026-11-21 02:00:{at % 60:02d} TP0] room={10**17 + at} is bootstrapped\n"
        for at in range(5000)
    )
    (tmp_path / "p.log").write_text(lines)
    found = list(Library(open_logs([str(tmp_path)]), environ=environ).rooms())
    assert len(found) == 5000
    assert len({room.line_kinds for room in found}) == 1
    assert {room.lines for room in found} == {2}


def test_short_rooms_lists_of_rooms_and_lines_without_a_time(tmp_path: Path, environ: dict[str, str]) -> None:
    (dispatch,) = (row.example for row in speech().rows if row.id == "dispatch")
    (tmp_path / "p.log").write_text(
        "[2026-11-21 02:00:00] room=7 is bootstrapped\n"
        "room=8 is bootstrapped\n"
        f"{re.sub(r'room=[0-9]+', 'room=9,10', dispatch)}\n"
        "[2026-11-21 02:00:06] nothing about room=11 that anybody knows\n"
    )
    found = {room.room: room for room in Library(open_logs([str(tmp_path)]), tz=UTC, environ=environ).rooms()}
    assert {7, 8, 9, 10} == set(found)
    assert (found[7].first, found[7].last) == (1795226400.0, 1795226400.0)
    assert (found[8].first, found[8].last) == (float("inf"), float("-inf"))
    assert told(found[10]) == {("p", "dispatch")}


def test_since_and_until_count_lines_not_rooms(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "p.log").write_text(
        "".join(f"[2026-11-21 02:00:{at:02d}] room={10**17 + at} is bootstrapped\n" for at in range(60))
    )
    logs = open_logs([str(tmp_path)])
    found = Library(logs, tz=UTC, since=1795226410.0, until=1795226420.0, environ=environ).rooms()
    assert sorted(room.room - 10**17 for room in found) == list(range(10, 21))


@pytest.mark.parametrize("lost", [True, False])
def test_logs_that_were_just_read_for_rooms_are_not_searched_for_lost_lines_again(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    (loss,) = (row.example for row in speech().rows if Sign.LINES_LOST in row.proves)
    room = "[2026-11-21 02:00:00] room=7 is bootstrapped\n"
    (tmp_path / "p.log").write_text(room + (f"{loss}\n" if lost else ""))
    (tmp_path / "q.log").write_text(room)
    library = Library(open_logs([str(tmp_path)]), tz=UTC, environ=environ)
    assert [found.room for found in library.rooms()] == [7]
    searched: list[str] = []
    find_lines = scan.find_lines

    def recorded(log: Log, terms: Sequence[bytes]) -> Iterator[RawLine]:
        searched.extend(part.path for part in log.parts)
        return find_lines(log, terms)

    monkeypatch.setattr("pdctl.logs.library.find_lines", recorded)
    assert [event.instance for event in library.losses] == (["p"] if lost else [])
    assert searched == ([str(tmp_path / "p.log")] if lost else [])


def test_a_part_of_the_logs_does_not_tell_that_no_lines_were_lost(tmp_path: Path, environ: dict[str, str]) -> None:
    (loss,) = (row.example for row in speech().rows if Sign.LINES_LOST in row.proves)
    rooms = "".join(
        f"[2026-11-21 {at // 60:02d}:{at % 60:02d}:00] room={10**17 + at} is bootstrapped\n" for at in range(1400)
    )
    (tmp_path / "p.log").write_text(f"{loss}\n{rooms}")
    logs = open_logs([str(tmp_path)])
    library = Library(logs, tz=UTC, since=1795273200.0, until=1795273260.0, environ=environ)
    assert [room.room - 10**17 for room in library.rooms()] == [900, 901]
    assert [event.instance for event in library.losses] == ["p"]
