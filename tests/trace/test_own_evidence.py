"""A cause rests on lines of its own room, or of its pair in that time, and on nothing that another room met."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.engines.row_matching import speech
from pdctl.errors import NotFoundError
from pdctl.trace import summaries
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_failed, decode_timed_out, engine, finished, got_info, received, rid, sending
from tests.trace.recordings import library, logs
from tests.trace.routers import starting

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM, OTHER = 7707449254856086911, 4079256317657669
UNFETCHED = "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:8998"


def pair(folder: Path, *decode: str, prefill: tuple[str, ...] = ()) -> Room:
    return pasted.room(
        folder, ROOM, router=[starting()], p0=engine("prefill", 30000, 8998, *prefill),
        p1=engine("prefill", 30001, 8999), d0=engine("decode", 30002, 8998, *decode),
    )  # fmt: skip


def code(room: Room) -> str | None:
    return room.cause.code if room.cause else None


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (f"{at(11)} Failed to get prefill server info: 500, Internal Server Error", "answered 500"),
        (
            f"{at(11)} Failed to get prefill server info: 503, Prefill server not fully registered yet (1 of 2).",
            "of its ranks have registered",
        ),
        (
            f"{at(11)} Error fetching prefill server info from bootstrap: HTTPConnectionPool(host='127.0.0.1', "
            "port=8998): Max retries exceeded with url: /route (Caused by [Errno 111] Connection refused)",
            "8998",
        ),
    ],
)
def test_what_the_bootstrap_address_answered_is_said(tmp_path: Path, answer: str, wanted: str) -> None:
    room = pair(tmp_path, received(10, ROOM, rid(ROOM)), answer, decode_failed(12, ROOM, UNFETCHED, "handshake"))
    assert code(room) == ("PD209" if "503" in answer else "PD205")
    assert room.cause is not None
    assert wanted in room.cause.headline
    assert ("answered" in room.cause.headline) is ("500" in answer)


def test_what_another_room_looked_up_in_vain_is_not_this_rooms_bootstrap(tmp_path: Path) -> None:
    """The room asked 8998, and got no further; the look-up that was refused is one of another prefill."""
    refused = (
        f"{at(11)} Error fetching prefill server info from bootstrap: HTTPConnectionPool(host='127.0.0.1', port=9999): "
        "Max retries exceeded with url: /route (Caused by [Errno 111] Connection refused)"
    )
    given_up = decode_failed(12, ROOM, f"Request {ROOM} timed out after 2.0s in KVPoll.Bootstrapping", "handshake")
    room = pair(tmp_path, received(10, ROOM, rid(ROOM)), refused, given_up)
    assert code(room) not in {"PD202", "PD205"}


def test_a_peer_that_another_room_lost_is_not_a_peer_that_hung_for_this_one(tmp_path: Path) -> None:
    theirs = decode_failed(
        31, OTHER,
        "Prefill server with bootstrap_addr: 127.0.0.1:8998 is healthy before, but now it is down. Request "
        f"(bootstrap_room: {OTHER}) has been marked as failed.",
    )  # fmt: skip
    mine = (received(10, ROOM, rid(ROOM)), sending(11, ROOM), theirs, decode_timed_out(31, ROOM))
    room = pair(tmp_path, *mine, prefill=(received(10, ROOM, rid(ROOM + 1)), *got_info(11, ROOM)))
    assert code(room) != "PD717"


def test_an_instance_that_answers_again_is_not_called_down(tmp_path: Path) -> None:
    down = (
        f"{at(20)} WARNING Worker prefill http://127.0.0.1:30000 not routed to bootstrap_port=8998 source=flag: "
        "3 health checks failed in a row: connection refused"
    )
    listed = (
        f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']"
    )
    served = f'{at(60)} INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK'
    ready = f"{at(2)} The server is fired up and ready to roll!"
    for name, lines, codes in (("back", (ready, served), []), ("gone", (), ["PD604"])):
        found = diagnose(
            pasted.library(
                tmp_path / name, router=[listed, down], p0=engine("prefill", 30000, 8998, *lines),
                d0=engine("decode", 30002, 8998),
            )
        )  # fmt: skip
        assert [one.code for one in found.remarks] == codes


def test_a_room_that_hangs_has_lived_to_the_end_of_its_logs(tmp_path: Path) -> None:
    """One line of it, and half an hour of others': that is no room of 0 s."""
    batch = (
        f"{at(900)} Decode batch, #running-req: 0, #token: 71, token usage: 0.02, pre-allocated usage: 0.00, "
        "#prealloc-req: 3, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): 3.55, "
        "#queue-req: 0"
    )
    files = {
        "p0": engine("prefill", 30000, 8998),
        "d0": engine("decode", 30002, 8998, received(10, ROOM, rid(ROOM)), received(11, OTHER, rid(OTHER)), batch,
                     finished(12, OTHER, rid(OTHER))),
    }  # fmt: skip
    rows = {one.room: one for one in room_summaries(Tracer(pasted.library(tmp_path, **files)))}
    assert (rows[ROOM].seconds, rows[ROOM].at_least) == (1790.0, True)
    assert (rows[OTHER].seconds, rows[OTHER].at_least) == (1.0, False)
    assert summaries.slowest(Tracer(pasted.library(tmp_path, **files)), 1) == (ROOM,)
    room = Tracer(pasted.library(tmp_path, **files)).trace(ROOM)
    assert any("3 in its prealloc queue" in line.says for line in room.evidence)
    assert any("1.79e+03 s at least" in note for note in room.notes)


def test_a_recorded_room_that_hung_has_its_time() -> None:
    rows = room_summaries(Tracer(library(logs("2p1d-missing-ports-spawn-debug-sgl058"))))
    (hung,) = (one for one in rows if one.outcome is RoomOutcome.HUNG)
    assert hung.at_least
    assert hung.seconds is not None
    assert hung.seconds > 100


@pytest.mark.parametrize("head", ["Receive: obj=GenerateReqInput(", "Receive OpenAI: obj=ChatCompletionRequest("])
def test_a_room_in_a_clients_text_is_not_the_rooms_of_the_request(head: str) -> None:
    quoted = f"[2026-11-21 02:00:10] {head}text='why did bootstrap_room={OTHER} fail?', rid='a', bootstrap_room={ROOM})"
    said = speech().match(quoted.encode())
    assert said is not None
    assert said.values["room"] == str(ROOM)


def test_a_room_that_lines_only_quote_is_not_there(tmp_path: Path) -> None:
    quoted = (
        f"{at(10)} Receive: obj=GenerateReqInput(rid='a', text='bootstrap_room={OTHER} was refused', "
        "bootstrap_host=None, bootstrap_port=None, bootstrap_room=None)"
    )
    answered = f"{at(11)} Answered POST /generate with 400: bootstrap_room={OTHER} is not a number below 2^63"
    found = pasted.library(tmp_path, d0=engine("decode", 30002, 8998, quoted, answered))
    assert not Tracer(found).trace(OTHER).events
    assert not room_summaries(Tracer(found))
    with pytest.raises(NotFoundError):
        summaries.by_rid(found, "a")
