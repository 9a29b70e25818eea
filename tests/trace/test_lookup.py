"""Finding the room one means: by a request's id, the last that failed, the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.cli.trace_room import WantedRoom, find_rooms
from pdctl.errors import NotFoundError
from pdctl.trace import summaries
from pdctl.trace.diagnose import diagnose
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_timed_out, engine, got_info, received, rid, sending
from tests.trace.recordings import library, logs, tracer, truth

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.logs.library import Library

ROOM = 7707449254856086911


@pytest.mark.parametrize("scenario", ["2p1d-missing-ports-info-sgl0523", "2p1d-healthy-info-log-requests-sgl0523"])
def test_every_id_of_every_room_leads_back_to_it(scenario: str) -> None:
    recorded = library(logs(scenario))
    ids = {
        name: int(room)
        for room in truth(scenario)
        for names in tracer(scenario).trace(int(room)).rids.values()
        for name in names.split(", ")
    }
    assert len(ids) > 9
    assert {name: summaries.by_rid(recorded, name) for name in ids} == ids


def test_pdctls_router_writes_its_own_id_next_to_the_room() -> None:
    recorded = library(logs("pdctl-missing-bootstrap-port"))
    (said,) = (
        step.text for step in tracer("pdctl-missing-bootstrap-port").trace(4652991996273247).events
        if step.row == "dispatch"
    )  # fmt: skip
    name = said.partition("request_id=")[2].split()[0]
    assert summaries.by_rid(recorded, name) == 4652991996273247


def test_of_several_attempts_the_last_one(tmp_path: Path) -> None:
    lines = [received(11, ROOM, "client-chosen-id"), received(31, ROOM + 1, "client-chosen-id")]
    found = pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, *lines))
    assert summaries.by_rid(found, "client-chosen-id") == ROOM + 1


def test_a_batch_goes_by_its_own_place(tmp_path: Path) -> None:
    both = (
        f"{at(11)} Receive: obj=GenerateReqInput(rid=['first', 'second'], bootstrap_host=['127.0.0.1', '127.0.0.1'], "
        f"bootstrap_port=[8998, 8998], bootstrap_room=[{ROOM}, {ROOM + 1}], stream=False)"
    )
    found = pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, both))
    assert [summaries.by_rid(found, name) for name in ("first", "second")] == [ROOM, ROOM + 1]


def test_nobody_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no line of these logs names request nobody"):
        summaries.by_rid(pasted.library(tmp_path, p0=engine("prefill", 30000, 8998)), "nobody")


def test_a_request_without_a_room(tmp_path: Path) -> None:
    said = (
        f"{at(9)} Invalid request: Disaggregated request received without bootstrap room id. req.rid='{rid(9)}'"
    )  # fmt: skip
    with pytest.raises(NotFoundError, match="PD712"):
        summaries.by_rid(pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, said)), rid(9))


def test_a_request_whose_room_no_line_tells(tmp_path: Path) -> None:
    said = f"{at(9)} Abort bootstrap queue request. req.rid='{rid(9)}'"
    with pytest.raises(NotFoundError) as raised:
        summaries.by_rid(pasted.library(tmp_path, p0=engine("prefill", 30000, 8998, said)), rid(9))
    assert "--log-requests" in raised.value.fix


def waits(folder: Path, *ends: tuple[int, int]) -> tuple[list[str], list[str]]:
    """(second it ended, seconds it waited) of ROOM, ROOM + 1, …"""
    prefill = [line for at_room, (end, length) in enumerate(ends) for line in got_info(end - length, ROOM + at_room)]
    decode = [sending(end - length, ROOM + at_room) for at_room, (end, length) in enumerate(ends)]
    decode += [decode_timed_out(end, ROOM + at_room, length) for at_room, (end, length) in enumerate(ends)]
    return engine("prefill", 30000, 8998, *prefill), engine("decode", 30002, 8998, *decode)


def test_the_last_that_failed_is_the_one_that_ended_last(tmp_path: Path) -> None:
    prefill, decode = waits(tmp_path, (100, 20), (340, 300), (200, 20))
    assert summaries.last_failed(Tracer(pasted.library(tmp_path, p0=prefill, d0=decode))) == ROOM + 1


def test_the_slowest_come_slowest_first(tmp_path: Path) -> None:
    prefill, decode = waits(tmp_path, (100, 20), (340, 300), (200, 40))
    found = pasted.library(tmp_path, p0=prefill, d0=decode)
    assert summaries.slowest(Tracer(found), 2) == (ROOM + 1, ROOM + 2)
    assert summaries.slowest(Tracer(found), 9) == (ROOM + 1, ROOM + 2, ROOM)


def test_the_slowest_share_what_concerns_every_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = waits(tmp_path, (100, 20), (340, 300), (200, 40))
    found = pasted.library(tmp_path, p0=prefill, d0=decode)
    made = []
    begin = Tracer.__init__

    def counted(tracer: Tracer, library: Library) -> None:
        made.append(library)
        begin(tracer, library)

    monkeypatch.setattr(Tracer, "__init__", counted)
    assert [room.room for room in find_rooms(Tracer(found), WantedRoom(slowest=3))] == [ROOM + 1, ROOM + 2, ROOM]
    assert made == [found]
    assert [room.room for room in find_rooms(Tracer(found), WantedRoom(last_failed=True))] == [ROOM + 1]
    assert made == [found] * 2
    assert sum(diagnose(found).tally.rooms.values()) == 3
    assert made == [found] * 3


def test_nothing_failed_and_nothing_has_a_time(tmp_path: Path) -> None:
    empty = pasted.library(tmp_path, p0=engine("prefill", 30000, 8998))
    with pytest.raises(NotFoundError, match="no room failed"):
        summaries.last_failed(Tracer(empty))
    with pytest.raises(NotFoundError, match="has a time"):
        summaries.slowest(Tracer(empty), 3)
