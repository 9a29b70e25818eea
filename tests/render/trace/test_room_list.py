"""The list of rooms on terminals and in pipes, and what chooses and orders it."""

from __future__ import annotations

import json

import pytest

from pdctl.cli.rooms import FIELDS, matcher
from pdctl.engines.base import Phase
from pdctl.errors import UsageError
from pdctl.render import room_list
from pdctl.trace.room import RoomOutcome, RoomSummary
from tests.render.trace import samples

FOUND = (
    RoomSummary(
        721586031618625451, "prefill-0", "decode-0", Phase.FINISHED, 0.2534, RoomOutcome.OK, "", samples.BEGAN, 12
    ),
    RoomSummary(
        5111113946003395278,
        "prefill-1",
        "decode-0",
        Phase.TIMED_OUT,
        20.0,
        RoomOutcome.FAILED,
        "PD201",
        samples.BEGAN + 60,
        5,
    ),
    RoomSummary(7, None, None, None, None, RoomOutcome.UNKNOWN, "", None, 1),
)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def shown(tty: bool, encoding: str = "utf-8", found: tuple[RoomSummary, ...] = FOUND) -> str:
    term, stream = samples.screen(tty, encoding)
    room_list.show(found, term, samples.UTC)
    return stream.getvalue()


def test_a_terminal_gets_a_table() -> None:
    assert shown(tty=True).splitlines() == [
        "               ROOM  STARTED   PREFILL    DECODE    PHASE        TOOK  OUTCOME  CAUSE",
        " 721586031618625451  01:34:20  prefill-0  decode-0  finished   0.25 s  ok       -",
        "5111113946003395278  01:35:20  prefill-1  decode-0  timed out    20 s  failed   PD201",
        "                  7  -         -          -         -               -  unknown  -",
    ]


def test_a_narrow_terminal_loses_what_tells_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    text = shown(tty=True)
    assert max(len(line) for line in text.splitlines()) <= 70
    assert "PHASE" not in text
    assert "5111113946003395278" in text
    monkeypatch.setenv("COLUMNS", "20")
    assert "5111113946003395278" in shown(tty=True)


def test_a_pipe_gets_tabs_and_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    head, ok, failed, blind = (line.split("\t") for line in shown(tty=False).splitlines())
    assert head == ["room", "started", "prefill", "decode", "phase", "seconds", "outcome", "cause", "note"]
    assert ok[:2] == ["721586031618625451", "2026-11-21T01:34:20.000Z"]
    assert failed[2:] == ["prefill-1", "decode-0", "timed_out", "20", "failed", "PD201", ""]
    assert blind == ["7", "", "", "", "", "", "unknown", "", ""]


def test_a_canary_is_marked_where_there_is_one() -> None:
    """Doctor leaves one on purpose: nobody is to look for the user behind it."""
    mine = FOUND[1]._replace(canary=True)
    head, ok, failed, _ = shown(tty=True, found=(FOUND[0], mine, FOUND[2])).splitlines()
    assert head.endswith("CAUSE  NOTE")
    assert failed.endswith("PD201  canary")
    assert "canary" not in ok
    assert shown(tty=False, found=(mine,)).splitlines()[1].endswith("\tPD201\tcanary")
    assert json.loads(room_list.to_jsonl((mine,), samples.screen(tty=False)[0]))["canary"] is True


def test_json_holds_everything() -> None:
    term, _ = samples.screen(tty=False)
    told = json.loads(room_list.to_json(FOUND, term))
    assert told["schema"] == "pdctl.rooms/1"
    assert told["rooms"][1]["cause"] == "PD201"
    assert told["rooms"][2]["seconds"] is None
    assert [json.loads(line) for line in room_list.to_jsonl(FOUND, term).split("\n")] == told["rooms"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("tty", [True, False])
def test_a_name_from_a_log_steers_nothing(tty: bool, encoding: str) -> None:
    bad = RoomSummary(7, "\x1b[2Jé\tx\n", "\u202ed", None, 1.0, RoomOutcome.OK, "", 0.0)
    text = shown(tty, encoding, (bad,))
    assert len(text.splitlines()) == 2
    assert all(letter in "\n\t" or letter.isprintable() for letter in text)
    assert text.splitlines()[1].count("\t") == (0 if tty else 8)


def test_totals_say_how_many_of_each() -> None:
    assert room_list.totals(FOUND, 3) == "3 rooms: 1 ok, 1 failed, 1 unknown"
    assert room_list.totals(FOUND[:1], 3) == "1 of 3 rooms: 1 ok"
    assert room_list.totals((), 0) == "0 rooms"


@pytest.mark.parametrize(
    ("filters", "outcomes", "least", "left"),
    [
        ([], [], None, [0, 1, 2]),
        ([], ["failed", "unknown"], None, [1, 2]),
        (["cause=PD2*"], [], None, [1]),
        (["prefill=prefill-*", "phase=finished"], [], None, [0]),
        (["room=7"], [], None, [2]),
        ([], [], 1.0, [1]),
        (["prefill="], [], None, [2]),
    ],
)
def test_filters_must_all_hold(filters: list[str], outcomes: list[str], least: float | None, left: list[int]) -> None:
    keep = matcher(filters, outcomes, least)
    assert [at for at, room in enumerate(FOUND) if keep(room)] == left


@pytest.mark.parametrize(("filters", "outcomes"), [(["colour=red"], []), (["prefill"], []), ([], ["great"])])
def test_a_filter_that_cannot_be_names_the_ones_that_can(filters: list[str], outcomes: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        matcher(filters, outcomes, None)
    assert "one of" in caught.value.fix


@pytest.mark.parametrize("name", ["room", "started", "prefill", "decode", "phase", "duration"])
def test_every_order_places_what_is_not_known_first(name: str) -> None:
    ordered = sorted(FOUND, key=FIELDS[name].key)  # type: ignore[arg-type, return-value]
    assert ordered[0].room == 7


def test_a_room_without_an_end_lasted_at_least_so_long() -> None:
    mine = FOUND[1]._replace(at_least=True)
    row = shown(tty=True, found=(mine,)).splitlines()[1]
    assert "≥ 20 s" in row
    assert row.endswith("no end")
    assert shown(tty=False, found=(mine,)).splitlines()[1].endswith("\tno end")
    assert json.loads(room_list.to_jsonl((mine,), samples.screen(tty=False)[0]))["at_least"] is True


def test_json_has_the_notes_that_the_text_form_has() -> None:
    term, _ = samples.screen(tty=False)
    assert json.loads(room_list.to_json(FOUND, term, ("prefill-0 died: `pdctl diagnose` says what happened",)))[
        "notes"
    ] == ["prefill-0 died: `pdctl diagnose` says what happened"]
