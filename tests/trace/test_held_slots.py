"""A decode whose slots are held by rooms that no prefill has, and a request with a bootstrap host that is no host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.trace.diagnose import diagnose
from tests.trace import pasted

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

HELD, WAITING, BAD = 403, 515, 410
NO_SLOT = (
    "No slot for 8 room(s): 4 of 4 are held by rooms without their KV cache for more than 5 s, the longest by room=403 "
    "rid='d403' for 5.0 s: has prefill 127.0.0.1:8998 a request with it?"
)


def at(second: int) -> str:
    return f"[2026-11-23 20:33:{second:02}.500]"


def engine(role: str, port: int, bootstrap: int, *lines: str) -> list[str]:
    start = (
        f"[2026-11-23 20:32:17.500] server_args=ServerArgs(model_path='tiny', host='127.0.0.1', port={port}, "
        f"log_level='info', disaggregation_mode='{role}', disaggregation_transfer_backend='shm', "
        f"disaggregation_bootstrap_port={bootstrap}, pdctl_engine=True)"
    )
    alive = '[2026-11-23 20:34:30.500] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'
    return [start, *lines, alive]


def asked(second: int, room: int, rid: str, host: str = "127.0.0.1") -> str:
    return (
        f"{at(second)} Receive: obj=GenerateReqInput(rid='{rid}', bootstrap_host='{host}', bootstrap_port=8998, "
        f"bootstrap_room={room})"
    )


def step(second: int, room: int, rid: str, phase: str) -> str:
    return f"{at(second)} Room step: room={room} rid='{rid}' phase={phase}"


def timed_out(second: int, room: int, side: str, rid: str, state: str) -> list[str]:
    why = f"Request {room} timed out after 15.0s in KVPoll.{state} (limit 15.0s): it did not come"
    head = f"Prefill bootstrap failed for request rank=0 req.rid='{rid}' req.bootstrap_room={room}"
    if side == "receiver":
        head = (
            f"Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room={room}"
        )
    code = "waiting_timeout" if side == "receiver" else "bootstrap_timeout"
    return [
        f"{at(second)} room={room} {side} failed rid='{rid}' code={code}: {why}",
        f"{at(second)} {head} with exception KVTransferError(bootstrap_room={room}): {why}",
    ]


def traced(folder: Path, room: int) -> Room:
    """Four rooms without a request at the prefill hold the slots (one is shown), one waits, one names `a@127.0.0.1`."""
    unfetched = "Could not fetch prefill parallel info from"
    told = "a@127.0.0.1:8998"
    decode = [
        asked(15, HELD, "d403"),
        step(15, HELD, "d403", "prealloc bootstrap_addr=127.0.0.1:8998"),
        step(15, HELD, "d403", "transfer pages=1 prealloc=0.003413"),
        f"{at(15)} room={HELD} rid='d403' announced pages=1 to=tcp://127.0.0.1:45777",
        asked(17, WAITING, "d515"),
        step(17, WAITING, "d515", "prealloc bootstrap_addr=127.0.0.1:8998"),
        f"{at(20)} {NO_SLOT}",
        asked(25, BAD, "d410", "a@127.0.0.1"),
        f"{at(25)} {unfetched} {told} after 1 attempts",
        f"{at(25)} room={BAD} receiver failed rid='d410' code=bootstrap_unreachable: {unfetched} bootstrap_addr: "
        f"{told}: http://{told}/route: not an address (host:port is needed)",
        *timed_out(30, HELD, "receiver", "d403", "WaitingForInput"),
    ]
    prefill = [
        f"{at(15)} got info room={HELD} agent_name='c2b1f0aa-77d1-4a8e-8c19-5ad1c3b0a001' required_dst_info_num=1",
        f"{at(15)} room={HELD} is bootstrapped",
        asked(17, WAITING, "p515"),
        step(17, WAITING, "p515", "bootstrap input_len=2"),
        *timed_out(32, WAITING, "sender", "p515", "Bootstrapping"),
    ]
    given = {"prefill-0": engine("prefill", 30000, 8998, *prefill), "decode-0": engine("decode", 30002, 8998, *decode)}
    return pasted.room(folder, room, **given)


def test_a_room_that_waited_for_a_slot_is_told_who_holds_the_slots(tmp_path: Path) -> None:
    """Neither side stood still: the prefill was silent because nothing came, and the decode had no slot."""
    cause = traced(tmp_path, WAITING).cause
    assert cause is not None
    assert (cause.code, cause.instance) == ("PD501", "decode-0")
    assert "4 of 4 slots of decode-0 are held" in cause.headline
    assert "room=403" in cause.why


def test_a_room_that_holds_a_slot_for_nothing_is_told_that_no_prefill_has_its_request(tmp_path: Path) -> None:
    """The prefill was not missed: what could not be reached is what another request gave as its address."""
    cause = traced(tmp_path, HELD).cause
    assert cause is not None
    assert (cause.code, cause.side) == ("PD703", "")
    assert cause.headline.startswith("prefill-0 never got the request of this room")


def test_a_request_with_a_bad_bootstrap_host_is_its_senders_fault_alone(tmp_path: Path) -> None:
    cause = traced(tmp_path, BAD).cause
    assert cause is not None
    assert (cause.code, cause.side) == ("PD205", "")


@pytest.mark.parametrize("said", [(), (f"{at(20)} {NO_SLOT}",)], ids=["full", "held"])
def test_a_room_that_its_decode_gave_up_for_want_of_pages_is_told_so(tmp_path: Path, said: tuple[str, ...]) -> None:
    """The prefill, whose time limit is longer, only hears of it."""
    why = (
        f"Request {WAITING} timed out after 15.0s in KVPoll.WaitingForInput (limit 15.0s): no pages or slot on this "
        "decode: 0 of 64 pages are free, 4 of 4 slots taken, 0 rooms come before it"
    )
    failed = f"with exception KVTransferError(bootstrap_room={WAITING}): "
    decode = [
        asked(17, WAITING, "d515"),
        step(17, WAITING, "d515", "prealloc bootstrap_addr=127.0.0.1:8998"),
        *said,
        f"{at(32)} room={WAITING} receiver failed rid='d515' code=waiting_timeout: {why}",
        f"{at(32)} Decode handshake failed for request rank=0 decode_req.req.rid='d515' "
        f"decode_req.req.bootstrap_room={WAITING} {failed}{why}",
    ]
    heard = "Aborted by decode-side abort notification."
    prefill = [
        asked(17, WAITING, "p515"),
        step(17, WAITING, "p515", "bootstrap input_len=2"),
        f"{at(32)} room={WAITING} sender failed rid='p515' code=aborted: {heard}",
        f"{at(32)} Prefill bootstrap failed for request rank=0 req.rid='p515' req.bootstrap_room={WAITING} "
        f"{failed}{heard}",
    ]
    given = {"prefill-0": engine("prefill", 30000, 8998, *prefill), "decode-0": engine("decode", 30002, 8998, *decode)}
    cause = pasted.room(tmp_path, WAITING, **given).cause
    assert cause is not None
    assert (cause.code, cause.side, cause.instance) == ("PD501", "decode", "decode-0")
    assert ("room=403" if said else "4 of 4 slots taken") in cause.why


@pytest.mark.parametrize("slot", [True, False], ids=["got a slot", "got none"])
def test_a_second_wave_of_rooms_has_a_cause_as_the_first_has(tmp_path: Path, slot: bool) -> None:
    """No prefill has a request of any of them; the second four wait for the slots that the first four hold."""
    first, second = range(401, 405), range(601, 605)
    decode, prefill = [], [asked(10, 999, "p999"), step(10, 999, "p999", "bootstrap input_len=2")]
    for room in first:
        decode += [
            asked(15, room, f"d{room}"),
            step(15, room, f"d{room}", "prealloc bootstrap_addr=127.0.0.1:8998"),
            step(15, room, f"d{room}", "transfer pages=1 prealloc=0.003413"),
            f"{at(15)} room={room} rid='d{room}' announced pages=1 to=tcp://127.0.0.1:45777",
        ]
    for room in second:
        decode += [asked(17, room, f"d{room}"), step(17, room, f"d{room}", "prealloc bootstrap_addr=127.0.0.1:8998")]
    decode.append(f"{at(20)} {NO_SLOT}")
    for room in first:
        decode += timed_out(30, room, "receiver", f"d{room}", "WaitingForInput")
    for room in second:
        if slot:
            decode += [
                step(30, room, f"d{room}", "transfer pages=1 prealloc=13.003413"),
                f"{at(30)} room={room} rid='d{room}' announced pages=1 to=tcp://127.0.0.1:45777",
                *timed_out(45, room, "receiver", f"d{room}", "WaitingForInput"),
            ]
        else:
            why = (
                f"Request {room} timed out after 15.0s in KVPoll.WaitingForInput (limit 15.0s): no pages or slot on "
                "this decode: 60 of 64 pages are free, 4 of 4 slots taken, 0 rooms come before it"
            )
            decode.append(f"{at(32)} room={room} receiver failed rid='d{room}' code=waiting_timeout: {why}")
    for room in (*first, *second) if slot else first:
        prefill.append(
            f"{at(15 if room in first else 30)} got info room={room} agent_name='c2b1f0aa-77d1-4a8e-8c19-5ad1c3b0a001' "
            "required_dst_info_num=1"
        )
    given = {"prefill-0": engine("prefill", 30000, 8998, *prefill), "decode-0": engine("decode", 30002, 8998, *decode)}
    told = diagnose(pasted.library(tmp_path, **given))
    assert told.tally.unexplained == ()
    causes = {room: one.code for one in told.findings for room in one.rooms}
    assert causes == {**dict.fromkeys(first, "PD703"), **dict.fromkeys(second, "PD703" if slot else "PD501")}
