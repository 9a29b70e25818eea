"""A router that died: the cause of what was in its hands and of nothing else, where its launcher's line says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_failed, decode_timed_out, engine, got_info, received, rid, sending
from tests.trace.recordings import diagnosis, library, logs, truth
from tests.trace.routers import P1, starting

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.logs.library import Library

RECORDING = "pdctl-killed-router"
ROOM = 7707449254856086911
KILLED = "pdctl: router generation 1 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)"


def aborted(second: int, room: int = ROOM) -> str:
    return (
        f"{at(second)} Finish: obj=GenerateReqInput(rid='{rid(room)}', bootstrap_room={room}), "
        "out={'meta_info': {'finish_reason': {'type': 'abort', 'message': 'Abort in waiting queue'}}}"
    )


def published(folder: Path, *router: str, decode: tuple[str, ...] = ()) -> Library:
    """A pair behind an sglang-router, which names no room."""
    listed = starting((8998, 8999)).replace(f', ("{P1}", Some(8999))', "")
    p0 = engine("prefill", 30000, 8998, received(10, ROOM, rid(ROOM)), *got_info(11, ROOM), aborted(20))
    d0 = engine("decode", 30002, 8998, received(10, ROOM, rid(ROOM)), sending(11, ROOM), *(decode or (aborted(20),)))
    return pasted.library(folder, p0=p0, d0=d0, router=[listed, *router])


def test_diagnose_names_the_router_and_every_room_it_took_along() -> None:
    found = diagnosis(RECORDING)
    (death,) = found.deaths
    taken = {int(room) for room, happened in truth(RECORDING).items() if happened["cause"]}
    assert (death.instance, death.role, death.code) == ("router", "router", "PD720")
    assert set(death.rooms) == taken
    assert [line.text for line in death.evidence] == [KILLED]
    assert not found.findings
    assert not found.tally.unexplained


def test_of_a_room_in_its_hands_no_other_cause_is_made_up() -> None:
    lost = next(int(room) for room, happened in truth(RECORDING).items() if happened["cause"])
    room = Tracer(library(logs(RECORDING))).trace(lost)
    assert room.cause is not None
    assert (room.cause.code, room.cause.instance) == ("PD720", "router")
    assert not room.consequences
    assert room.evidence[0].text == KILLED


def test_a_published_router_names_no_room_but_its_launcher_names_its_end(tmp_path: Path) -> None:
    found = Tracer(published(tmp_path, f"{at(19)} {KILLED}")).trace(ROOM)
    assert found.cause is not None
    assert found.cause.code == "PD720"
    assert found.outcome is RoomOutcome.FAILED


def test_without_a_line_of_its_end_a_routers_log_that_stops_proves_nothing(tmp_path: Path) -> None:
    logs = published(tmp_path)
    found = Tracer(logs).trace(ROOM)
    assert found.cause is None or found.cause.code != "PD720"
    assert not diagnose(logs).deaths


@pytest.mark.parametrize("second", [5, 60])
def test_a_router_that_died_before_the_room_or_after_it_is_no_cause_of_its_end(tmp_path: Path, second: int) -> None:
    logs = published(tmp_path, f"{at(second)} {KILLED}")
    found = Tracer(logs).trace(ROOM)
    assert found.cause is None or found.cause.code != "PD720"
    assert [one.code for one in diagnose(logs).deaths] == ["PD720"]


@pytest.mark.parametrize("ends", [decode_failed(20, ROOM, "the agent is gone"), decode_timed_out(20, ROOM, 9)])
def test_what_failed_by_itself_beside_a_routers_death_is_not_laid_to_it(tmp_path: Path, ends: str) -> None:
    found = Tracer(published(tmp_path, f"{at(19)} {KILLED}", decode=(ends,))).trace(ROOM)
    assert found.cause is None or found.cause.code != "PD720"


def test_a_silent_death_has_the_time_of_the_line_that_shows_it(tmp_path: Path) -> None:
    """The process was idle for minutes when it was killed: its own last line is no sign of its end."""
    missed = f"{at(600)} Health check 1 failed: decode http://127.0.0.1:30002 connection refused"
    router = [
        f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']",
        missed,
    ]
    logs = pasted.library(
        tmp_path, p0=engine("prefill", 30000, 8998), d0=engine("decode", 30002, 8998, until=20), router=router
    )
    (death,) = diagnose(logs).deaths
    first = logs.first()
    assert first is not None
    assert death.at == first + 600.0
