"""A client that left: said as that everywhere, with when it left, and never a canary of doctor's taken for a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.engines.pdctl import own_adapters
from pdctl.errors import NotFoundError
from pdctl.trace import summaries
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.engines import HOST, at, decode_timed_out, engine, finished, got_info, received, rid, sending

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM = 4652991996273247
PAIR = "attempt=1 prefill=http://127.0.0.1:30000 decode=http://127.0.0.1:30002"
TOLD = "the client closed the connection"


def p0(*lines: str, until: int = 1800) -> list[str]:
    return engine("prefill", 30000, 8998, *lines, until=until)


def d0(*lines: str, until: int = 1800) -> list[str]:
    return engine("decode", 30002, 8998, *lines, until=until)


def code(room: Room) -> str | None:
    return room.cause.code if room.cause else None


def began(second: int, room: int = ROOM, name: str = "") -> tuple[list[str], list[str]]:
    """The lines of either side until the cache is there, as pdctl's engine writes them."""
    name = name or rid(room)
    arrived = f"{at(second)} room={room} KV cache arrived rid='{name}' pages=1 bytes=32768 seconds=0.01 from=x:8998"
    decode = [received(second, room, name), sending(second, room), arrived]
    return [received(second, room, name), *got_info(second, room)], decode


def closed(second: int, room: int = ROOM, name: str = "", spent: float = 0.522743) -> str:
    return (
        f"{at(second)} Finish: obj=GenerateReqInput(rid='{name or rid(room)}', bootstrap_host='{HOST}', "
        f"bootstrap_port=8998, bootstrap_room={room}), out={{'finish_reason': 'abort', 'prompt_tokens': 3, "
        f"'completion_tokens': 28, 'e2e_latency': {spent}, 'message': '{TOLD}'}}"
    )


def router(*lines: str) -> list[str]:
    return [
        f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']",
        f"{at(11)} Dispatch room={ROOM} rid=r1 request_id=r1 {PAIR} bootstrap=127.0.0.1:8998 path=/generate",
        *lines,
    ]


def gone(second: int, spent_ms: float, first_byte: str = "-") -> str:
    return (
        f"{at(second)} Finish room={ROOM} rid=r1 request_id=r1 {PAIR} status=- outcome=client_gone prefill_ms=35.5 "
        f"first_byte_ms={first_byte} total_ms={spent_ms}"
    )


def test_the_routers_line_is_enough_while_the_logs_still_grow(tmp_path: Path) -> None:
    """Nobody has written a line since; and the router knows to the millisecond when it was."""
    prefill, decode = began(11)
    room = pasted.room(
        tmp_path, ROOM, router=router(gone(12, 501.5)), p0=p0(*prefill, until=12), d0=d0(*decode, closed(12), until=12)
    )
    assert room.outcome is RoomOutcome.ABORTED
    assert room.cause is not None
    assert room.cause.code == "PD706"
    assert room.cause.headline.endswith("after 0.501 s")


def test_the_routers_line_alone_ends_the_room(tmp_path: Path) -> None:
    prefill, decode = began(11)
    room = pasted.room(tmp_path, ROOM, router=router(gone(12, 1500.0)), p0=p0(*prefill), d0=d0(*decode))
    assert room.outcome is RoomOutcome.ABORTED
    assert code(room) == "PD706"


def test_a_router_that_gave_up_is_no_client_that_left(tmp_path: Path) -> None:
    """To the engine the router is the client: that it hung up says nothing of the user."""
    failed = (
        f"{at(12)} WARNING Finish room={ROOM} rid=r1 request_id=r1 {PAIR} status=- outcome=failed prefill_ms=3.1 "
        "first_byte_ms=- total_ms=4.0: prefill http://127.0.0.1:30000 answered 500"
    )
    prefill, decode = began(11)
    room = pasted.room(tmp_path, ROOM, router=router(failed), p0=p0(*prefill), d0=d0(*decode, closed(12)))
    assert code(room) != "PD706"


def test_a_prefill_that_went_silent_while_the_client_waited_is_not_absolved(tmp_path: Path) -> None:
    """The cache had not come; the prefill wrote nothing for 19 s before the client had enough."""
    prefill, _ = began(11)
    decode = [received(11, ROOM, rid(ROOM)), sending(11, ROOM)]
    room = pasted.room(
        tmp_path, ROOM, router=router(gone(30, 19000.0)), p0=p0(*prefill, until=11), d0=d0(*decode, closed(30))
    )
    assert code(room) != "PD706"


@pytest.mark.parametrize("kind", [1, 3])
def test_sglang_finds_out_when_it_looks(tmp_path: Path, kind: int) -> None:
    """0.5.13+ says so at INFO; it looks every 4 s, so the client left up to 4 s before the line."""
    said = (
        f"{at(21)} [http_server] Client disconnected: Request is disconnected from the client side (type {kind}). "
        f"Abort request obj.rid='{rid(ROOM)}'"
    )
    prefill, decode = began(11)
    room = pasted.room(tmp_path, ROOM, p0=p0(*prefill), d0=d0(*decode, said))
    assert room.cause is not None
    assert room.cause.code == "PD706"
    assert room.cause.headline.endswith("after 6 to 10 s")
    assert said.partition("] ")[2] in {line.text for line in room.evidence}


def test_a_transfer_that_took_long_under_load_is_not_why_the_client_left(tmp_path: Path) -> None:
    prefill, decode = began(11)
    slow = f"{at(14)} room={ROOM} KV transfer done rid='{rid(ROOM)}' pages=1 bytes=32768 seconds=2.6"
    room = pasted.room(tmp_path, ROOM, p0=p0(*prefill, slow), d0=d0(*decode, closed(15)))
    assert code(room) == "PD706"
    assert any(one.startswith("PD412") for one in room.consequences)


def test_a_client_that_left_behind_the_complete_answer_is_none(tmp_path: Path) -> None:
    prefill, decode = began(11)
    done = finished(12, ROOM, rid(ROOM))
    room = pasted.room(tmp_path, ROOM, router=router(gone(12, 900.0, "850.0")), p0=p0(*prefill), d0=d0(*decode, done))
    assert (room.outcome, code(room)) == (RoomOutcome.OK, None)


def test_a_client_that_left_a_router_that_stood_still_did_not_get_the_answer(tmp_path: Path) -> None:
    """The decode had finished seconds before, and the router, frozen meanwhile, found nobody to hand the answer to."""
    prefill, decode = began(11)
    done = finished(12, ROOM, rid(ROOM))
    room = pasted.room(tmp_path, ROOM, router=router(gone(19, 7900.0)), p0=p0(*prefill), d0=d0(*decode, done))
    assert (room.outcome, code(room)) == (RoomOutcome.ABORTED, "PD706")
    assert room.cause is not None
    assert "had not handed on the answer for 7 s" in room.cause.why


@pytest.mark.parametrize(
    ("second", "took", "first_byte", "when"),
    [
        (13, ", 'e2e_latency': 2.3", "850.0", "1.3 s before d0 finished the answer"),
        (18, "", "850.0", "6 s before d0 finished the answer"),
        (12, ", 'e2e_latency': 1.1", "-", "before it was sent a byte of the answer"),
    ],
    ids=["durations", "times", "no byte"],
)
def test_a_client_that_left_before_the_answer_was_complete_did_not_get_it(
    tmp_path: Path, second: int, took: str, first_byte: str, when: str
) -> None:
    """The decode stood still, went on, and finished for nobody."""
    prefill, decode = began(11)
    done = finished(second, ROOM, rid(ROOM), "{'type': 'length', 'length': 8}" + took)
    lines = router(gone(12, 1000.0, first_byte))
    room = pasted.room(tmp_path, ROOM, router=lines, p0=p0(*prefill), d0=d0(*decode, done))
    assert (room.outcome, code(room)) == (RoomOutcome.ABORTED, "PD706")
    assert room.cause is not None
    assert room.cause.why == f"the client closed its connection to the router {when}"
    assert done.partition("] ")[2] in {line.text for line in room.evidence}


def left_on_purpose(second: int, room: int) -> tuple[list[str], list[str]]:
    prefill, decode = began(second, room, own_adapters.rid(room))
    end = closed(second, room, own_adapters.rid(room), 0.031)
    return [*prefill, end], [*decode, end]


def test_a_canary_that_doctor_left_is_marked_and_not_the_last_that_failed(tmp_path: Path) -> None:
    prefill, decode = left_on_purpose(100, ROOM + 2)
    users = (decode_timed_out(60, ROOM, 20), sending(40, ROOM))
    library = pasted.library(tmp_path, p0=p0(*got_info(40, ROOM), *prefill), d0=d0(*users, *decode))
    assert {one.room: one.canary for one in room_summaries(Tracer(library))} == {ROOM: False, ROOM + 2: True}
    assert summaries.last_failed(Tracer(library)) == ROOM
    (row,) = (one for one in room_summaries(Tracer(library)) if one.canary)
    assert row.code == "PD706"
    assert "canary" in Tracer(library).trace(ROOM + 2).notes[0]
    assert "cuts one short" in Tracer(library).trace(ROOM + 2).cause.why  # type: ignore[union-attr]


@for_each("name", ["pdctl-canary-zzz", "pdctl-canary-1", own_adapters.rid(ROOM) + "x"])
def test_a_client_that_calls_its_request_a_canary_makes_it_none(tmp_path: Path, name: str) -> None:
    """The id of doctor's own names the room it drew; of a client's text nothing follows, and its failure is one."""
    prefill = [received(40, ROOM, name), *got_info(40, ROOM)]
    decode = [received(40, ROOM, name), sending(40, ROOM), decode_timed_out(60, ROOM, 20)]
    library = pasted.library(tmp_path, p0=p0(*prefill), d0=d0(*decode))
    (row,) = room_summaries(Tracer(library))
    assert (row.canary, row.outcome) == (False, RoomOutcome.FAILED)
    assert not any("is a canary" in note for note in Tracer(library).trace(ROOM).notes)


def test_a_canary_that_was_left_alone_is_no_failure(tmp_path: Path) -> None:
    prefill, decode = left_on_purpose(100, ROOM)
    library = pasted.library(tmp_path, p0=p0(*prefill), d0=d0(*decode))
    with pytest.raises(NotFoundError, match="no room failed"):
        summaries.last_failed(Tracer(library))


def test_a_canary_that_doctor_left_is_no_finding_of_a_diagnosis(tmp_path: Path) -> None:
    prefill, decode = left_on_purpose(100, ROOM)
    found = diagnose(pasted.library(tmp_path, p0=p0(*prefill), d0=d0(*decode)))
    assert (found.findings, found.tally.rooms, found.tally.canaries, found.wrong) == ((), {}, 1, False)


REFUSED = (
    f"{at(50)} Finish room={ROOM} rid={'b' * 32} request_id={'b' * 32} attempt=1 prefill=http://127.0.0.1:30000 "
    "decode=http://127.0.0.1:30002 status=400 outcome=refused prefill_ms=2.2 first_byte_ms=2.2 total_ms=2.3"
)


def test_a_request_that_was_refused_is_nobodys_failure(tmp_path: Path) -> None:
    """The pair's other leg was let go, which says Aborted: an echo."""
    library = pasted.library(tmp_path, router=router(REFUSED), p0=p0(received(50, ROOM, rid(ROOM))), d0=d0())
    found = Tracer(library).trace(ROOM)
    assert (found.outcome, code(found)) == (RoomOutcome.REFUSED, "PD718")
    assert [(one.outcome, one.code) for one in room_summaries(Tracer(library))] == [(RoomOutcome.REFUSED, "PD718")]
    told = diagnose(library)
    assert ([(one.code, one.grave) for one in told.findings], told.wrong) == ([("PD718", False)], False)
    with pytest.raises(NotFoundError, match="no room failed"):
        summaries.last_failed(Tracer(library))


OVERDUE = (
    f"{at(60)} WARNING Finish room={ROOM} rid={'b' * 32} request_id={'b' * 32} {PAIR} status=- outcome=failed "
    "prefill_ms=177.1 first_byte_ms=- total_ms=10242.4: decode http://127.0.0.1:30002 did not finish within "
    "--request-timeout"
)


def test_an_answer_that_took_longer_than_the_router_waits_is_no_instances_failure(tmp_path: Path) -> None:
    prefill, decode = began(50)
    library = pasted.library(tmp_path, router=router(OVERDUE), p0=p0(*prefill), d0=d0(*decode, closed(60)))
    found = Tracer(library).trace(ROOM)
    assert (found.outcome, code(found)) == (RoomOutcome.FAILED, "PD719")
    assert found.cause is not None
    assert found.cause.instance == ""
    assert "10.2 s" in found.cause.headline
    assert "28 tokens" in found.cause.why
    assert [one.code for one in diagnose(library).findings] == ["PD719"]


@pytest.mark.parametrize("until", [60, 1800], ids=["its log ends there", "no token is told"])
def test_the_routers_limit_is_no_cause_where_nothing_shows_a_decode_at_work(tmp_path: Path, until: int) -> None:
    prefill, decode = began(50)
    ends = [closed(60)] if until == 60 else []
    logs = {"router": router(OVERDUE), "p0": p0(*prefill), "d0": d0(*decode, *ends, until=until)}
    assert code(Tracer(pasted.library(tmp_path, **logs)).trace(ROOM)) != "PD719"


def test_a_canary_that_hung_is_what_failed_where_no_user_has(tmp_path: Path) -> None:
    prefill, decode = left_on_purpose(100, ROOM + 2)
    mine = [received(40, ROOM, own_adapters.rid(ROOM)), *got_info(40, ROOM)]
    failed = [received(40, ROOM, own_adapters.rid(ROOM)), sending(40, ROOM), decode_timed_out(60, ROOM, 20)]
    library = pasted.library(tmp_path, p0=p0(*mine, *prefill), d0=d0(*failed, *decode))
    assert summaries.last_failed(Tracer(library)) == ROOM


def test_a_client_that_left_is_no_failure_of_the_deployment(tmp_path: Path) -> None:
    """An outcome of its own in every list; what a reader looks for behind --last-failed is a room that broke."""
    prefill, decode = began(11)
    lines = {"router": router(gone(12, 501.5)), "p0": p0(*prefill), "d0": d0(*decode, closed(12))}
    left = pasted.library(tmp_path / "left", **lines)
    assert [(one.outcome, one.code) for one in room_summaries(Tracer(left))] == [(RoomOutcome.ABORTED, "PD706")]
    with pytest.raises(NotFoundError, match="no room failed"):
        summaries.last_failed(Tracer(left))
    told = diagnose(left)
    assert ([(one.code, one.grave) for one in told.findings], told.tally.broken, told.wrong) == (
        [("PD706", False)], 0, False,
    )  # fmt: skip
    users = (decode_timed_out(5, ROOM + 1, 3), sending(2, ROOM + 1))
    both = pasted.library(tmp_path / "both", **{**lines, "d0": d0(*users, *decode, closed(12))})
    assert summaries.last_failed(Tracer(both)) == ROOM + 1


@pytest.mark.parametrize("traced", [200, 0], ids=["traced", "own lines alone"])
def test_what_the_engines_give_up_because_the_client_left_is_no_failure(
    traced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both managers say `failed … code=aborted` of a transfer that was under way."""
    monkeypatch.setattr(summaries, "TRACED", traced)
    prefill, decode = began(11)
    given_up = f"failed rid='{rid(ROOM)}' code=aborted: Aborted by AbortReq."
    found = pasted.library(
        tmp_path,
        router=router(gone(12, 501.5)),
        p0=p0(*prefill, f"{at(12)} room={ROOM} sender {given_up}"),
        d0=d0(*decode, f"{at(12)} room={ROOM} receiver {given_up}", closed(12)),
    )
    assert [(one.outcome, one.code) for one in room_summaries(Tracer(found))] == [(RoomOutcome.ABORTED, "PD706")]


@pytest.mark.parametrize("sides", ["decode", "prefill", "both"])
def test_a_canary_that_doctor_has_just_left_is_no_finding_of_a_diagnosis(sides: str, tmp_path: Path) -> None:
    """Asked within the second: one side has not written its line yet, and neither has written another one since."""
    prefill, decode = left_on_purpose(100, ROOM)
    prefill, decode = (prefill[:-1] if sides == "decode" else prefill), (decode[:-1] if sides == "prefill" else decode)
    found = diagnose(pasted.library(tmp_path, p0=p0(*prefill, until=100), d0=d0(*decode, until=100)))
    assert (found.findings, found.tally.rooms, found.tally.canaries, found.wrong) == ((), {}, 1, False)


def cut(second: int) -> str:
    """The decode's last line of a request that was aborted while it ran."""
    return closed(second).replace(TOLD, "Aborted by AbortReq.")


def test_a_request_that_somebody_aborted_is_no_client_that_left(tmp_path: Path) -> None:
    prefill, decode = began(11)
    call = f'{at(12)} INFO:     127.0.0.1:33632 - "POST /abort_request HTTP/1.1" 200 OK'
    room = pasted.room(tmp_path, ROOM, p0=p0(*prefill, until=12), d0=d0(*decode, call, cut(12), until=12))
    assert (room.outcome, code(room)) == (RoomOutcome.ABORTED, "PD706")
    assert room.cause is not None
    assert room.cause.headline.startswith("somebody aborted the request (POST /abort_request at d0)")
    assert call.partition("INFO:     ")[2] in {line.text for line in room.evidence}
    assert "client" not in room.fix
    (found,) = diagnose(
        pasted.library(tmp_path, p0=p0(*prefill, until=12), d0=d0(*decode, call, cut(12), until=12))
    ).findings
    assert (found.code, found.instance, found.grave) == ("PD706", "d0", False)


def test_an_order_to_abort_that_was_refused_aborted_nothing(tmp_path: Path) -> None:
    prefill, decode = began(11)
    call = f'{at(12)} INFO:     127.0.0.1:33632 - "POST /abort_request HTTP/1.1" 401 Unauthorized'
    room = pasted.room(tmp_path, ROOM, p0=p0(*prefill), d0=d0(*decode, call, cut(12)))
    assert room.cause is not None
    assert not room.cause.headline.startswith("somebody")


def test_where_no_line_tells_who_aborted_both_are_named(tmp_path: Path) -> None:
    """Engines above INFO write no line about HTTP calls."""
    prefill, decode = began(11)
    room = pasted.room(tmp_path, ROOM, p0=p0(*prefill), d0=d0(*decode, cut(12)))
    assert room.cause is not None
    assert room.cause.headline.startswith("the client went away, or somebody aborted the request, after ")
    answered = f'{at(12)} INFO:     127.0.0.1:33632 - "POST /generate HTTP/1.1" 200 OK'
    told = pasted.room(tmp_path / "calls", ROOM, p0=p0(*prefill), d0=d0(*decode, cut(12), answered))
    assert told.cause is not None
    assert told.cause.headline.startswith("the client went away after ")


def refused(second: int, leg: str, url: str) -> str:
    return (
        f"{at(second)} WARNING Finish room={ROOM} rid=r1 request_id=r1 {PAIR} status=- outcome=failed prefill_ms=0.4 "
        f"first_byte_ms=- total_ms=0.5: {leg} {url} no connection: Connection refused"
    )


def tried_again(second: int) -> list[str]:
    where = f"room={ROOM + 1} rid=r1 request_id=r1 {PAIR.replace('attempt=1', 'attempt=2')}"
    return [
        f"{at(second)} Dispatch {where} bootstrap=127.0.0.1:8998 path=/generate",
        f"{at(second)} Finish {where} status=200 outcome=ok prefill_ms=9.1 first_byte_ms=12.4 total_ms=12.5",
    ]


def killed(second: int, name: str) -> str:
    return f"{at(second)} pdctl: {name} generation 1 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)"


def test_a_request_that_was_tried_again_is_not_lost(tmp_path: Path) -> None:
    """The router could not connect to a prefill that was dead, and got the answer under another room at once."""
    files = {
        "router": router(refused(11, "prefill", "http://127.0.0.1:30000"), *tried_again(11)),
        "p0": p0(killed(10, "p0"), until=9),
        "d0": d0(received(11, ROOM, rid(ROOM)), cut(11)),
    }
    room = pasted.room(tmp_path, ROOM, **files)
    assert (room.outcome, code(room)) == (RoomOutcome.RETRIED, "PD705")
    assert room.answered_as == ROOM + 1
    assert any(note.startswith("PD715") and str(ROOM + 1) in note for note in room.notes)
    assert not any("HTTP request" in one.what for one in room.missing_evidence), "the router could not connect"
    told = diagnose(pasted.library(tmp_path, **files))
    (death,) = told.deaths
    assert (death.rooms, death.retried) == ((ROOM,), 1)
    assert (told.tally.broken, dict(told.tally.rooms)) == (0, {"retried": 1, "ok": 1})
    again = Tracer(pasted.library(tmp_path, **files)).trace(ROOM + 1)
    assert any("attempt 2 of request r1" in note for note in again.notes)
    listed = room_summaries(Tracer(pasted.library(tmp_path, **files)))
    assert [(one.room, one.outcome.value, one.code) for one in listed] == [
        (ROOM, "retried", "PD705"), (ROOM + 1, "ok", ""),
    ]  # fmt: skip
    with pytest.raises(NotFoundError):
        summaries.last_failed(Tracer(pasted.library(tmp_path, **files)))


def test_a_decode_that_was_dead_before_never_had_the_room(tmp_path: Path) -> None:
    room = pasted.room(
        tmp_path, ROOM, router=router(refused(11, "decode", "http://127.0.0.1:30002")),
        p0=p0(received(11, ROOM, rid(ROOM))), d0=d0(killed(10, "d0"), until=9),
    )  # fmt: skip
    assert room.cause is not None
    assert room.cause.headline == "d0 died before it got the room"


def test_a_prefill_whose_answer_the_router_handed_on_had_the_request(tmp_path: Path) -> None:
    """Its own log ends before, so no line of it shows that it was up."""
    done = (
        f"{at(12)} Finish room={ROOM} rid=r1 request_id=r1 {PAIR} status=200 outcome=ok prefill_ms=9.1 "
        "first_byte_ms=12.4 total_ms=12.5"
    )
    _, decode = began(11)
    room = pasted.room(
        tmp_path, ROOM, router=router(done), p0=p0(until=5), d0=d0(*decode, finished(12, ROOM, rid(ROOM)))
    )
    assert (room.outcome, room.prefill_requested) == (RoomOutcome.OK, "p0")
    assert not any("HTTP request" in one.what for one in room.missing_evidence)
