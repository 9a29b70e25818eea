"""Requests that were sent straight to the engines: the router is blamed only by its own lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.render.trace.wording import describe_without_cause
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from tests.trace import pasted
from tests.trace.engines import at, decode_failed, decode_timed_out, engine, got_info, prefill_timed_out, rid, sending
from tests.trace.routers import starting

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM = 102
NONE_CAME = (
    f"prefill rank tcp://127.0.0.1:33205 (bootstrap server 127.0.0.1:8998) has no request with room {ROOM}: none came "
    "within 30.0s; was the request routed to another prefill than its bootstrap address says?"
)
RIGHT, SWAPPED = (8998, 8999), (8999, 8998)


def carried(second: int, room: int, request: str, host: str, port: int) -> str:
    return (
        f"{at(second)} Receive: obj=GenerateReqInput(rid='{request}', bootstrap_host='{host}', bootstrap_port={port}, "
        f"bootstrap_room={room})"
    )


def given_up(second: int, room: int, told: str, why: str) -> str:
    return (
        f"{at(second)} room={room} receiver failed rid='{rid(room)}' code=bootstrap_unreachable: Could not fetch "
        f"prefill parallel info from bootstrap_addr: {told}: http://{told}/route: {why}"
    )


def files(
    decode: list[str], prefill: list[str], other: list[str], ports: tuple[int, int] | None
) -> dict[str, list[str]]:
    given = {
        "p0": engine("prefill", 30000, 8998, *prefill), "p1": engine("prefill", 30001, 8999, *other),
        "d0": engine("decode", 30002, 8998, *decode),
    }  # fmt: skip
    return given if ports is None else {**given, "router": [starting(ports)]}


def crossed(folder: Path, ports: tuple[int, int] | None) -> Room:
    """A request for p0 that names p1's bootstrap server."""
    asked = [carried(10, ROOM, rid(ROOM + 1), "127.0.0.1", 8999), prefill_timed_out(31, ROOM)]
    decode = [carried(10, ROOM, rid(ROOM), "127.0.0.1", 8999), sending(11, ROOM), decode_timed_out(31, ROOM)]
    return pasted.room(folder, ROOM, **files(decode, asked, got_info(11, ROOM), ports))


@pytest.mark.parametrize("ports", [None, RIGHT])
def test_a_wrong_port_is_the_routers_only_if_a_line_of_its_shows_it(
    tmp_path: Path, ports: tuple[int, int] | None
) -> None:
    cause = crossed(tmp_path, ports).cause
    assert cause is not None
    assert (cause.code, cause.side) == ("PD202", "")
    assert cause.headline.startswith(
        "an unknown sender (no router's line shows this request) sends bootstrap port 8999"
    )
    assert "the router" not in cause.why


def test_a_router_that_lists_the_port_the_request_carried_sent_it(tmp_path: Path) -> None:
    cause = crossed(tmp_path, SWAPPED).cause
    assert cause is not None
    assert (cause.code, cause.side) == ("PD203", "router")


def http_port(folder: Path, ports: tuple[int, int] | None) -> Room:
    why = "404; no bootstrap server: is this an engine's HTTP port?"
    decode = [carried(10, ROOM, rid(ROOM), "127.0.0.1", 30000), given_up(10, ROOM, "127.0.0.1:30000", why)]
    return pasted.room(
        folder,
        ROOM,
        **files(decode, [carried(10, ROOM, rid(ROOM + 1), "127.0.0.1", 8998), prefill_timed_out(31, ROOM)], [], ports),
    )


@pytest.mark.parametrize("ports", [None, RIGHT])
def test_an_http_port_for_a_bootstrap_port_is_the_senders(tmp_path: Path, ports: tuple[int, int] | None) -> None:
    room = http_port(tmp_path, ports)
    assert room.cause is not None
    assert (room.cause.code, room.cause.side) == ("PD206", "")
    assert "an unknown sender" in room.cause.headline
    assert "8998" in room.fix


def no_address(second: int, room: int) -> list[str]:
    return [
        carried(second, room, rid(room), "a@host", 8998),
        given_up(second, room, "a@host:8998", "not an address (host:port is needed)"),
    ]


def test_a_bootstrap_host_that_is_no_host_is_named_as_the_request_gave_it(tmp_path: Path) -> None:
    """Another room's 404 at the same time says nothing of this one."""
    elsewhere = [
        f'{at(10)} Failed to get prefill server info: 404, {{"detail":"Not Found"}}',
        f"{at(10)} Could not fetch prefill parallel info from 127.0.0.1:30000 after 1 attempts",
    ]
    room = pasted.room(tmp_path, ROOM, **files([*elsewhere, *no_address(10, ROOM)], [], [], RIGHT))
    assert room.cause is not None
    assert (room.cause.code, room.cause.side, room.cause.instance) == ("PD205", "", "")
    assert "a@host:8998 is not an address" in room.cause.headline
    assert not any("answered the decode" in note for note in room.notes)


def test_what_a_server_answered_another_room_is_not_what_this_rooms_server_answered(tmp_path: Path) -> None:
    """The line of an answer names no server, and two were asked."""
    lines = [
        f"{at(10)} Could not fetch prefill parallel info from 127.0.0.1:30001 after 1 attempts",
        f'{at(10)} Failed to get prefill server info: 404, {{"detail":"Not Found"}}',
        decode_failed(
            12, ROOM, "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:8998", "handshake"
        ),
    ]
    room = pasted.room(tmp_path, ROOM, **files(lines, [], [], RIGHT))
    assert not any("answered the decode" in note for note in room.notes)


def test_a_failure_that_no_cause_explains_is_quoted(tmp_path: Path) -> None:
    why = "prefill has 1 pages of room 102, decode tcp://127.0.0.1:44373 reserved 4"
    lines = [sending(10, ROOM), f"{at(10)} room={ROOM} receiver failed rid='d102' code=bad_pages: {why}"]
    given = files(lines, got_info(10, ROOM), [], RIGHT)
    room = pasted.room(tmp_path, ROOM, **given)
    assert (room.outcome, room.cause) == (RoomOutcome.FAILED, None)
    assert (
        f"d0 gave it up with: room={ROOM} receiver failed rid='d102' code=bad_pages: {why}"
        in describe_without_cause(room)
    )
    assert diagnose(pasted.library(tmp_path, **given)).tally.unexplained == (ROOM,)


@pytest.mark.parametrize("status", ["401", "403", "302", "500", "502"])
@pytest.mark.parametrize("own", [True, False], ids=["pdctl", "sglang"])
def test_what_answered_in_place_of_the_bootstrap_server_is_told(tmp_path: Path, status: str, own: bool) -> None:
    """Its ranks may have registered, as far as anybody knows: whoever answered is not it."""
    lines = [carried(10, ROOM, rid(ROOM), "127.0.0.1", 8998)]
    if own:
        lines += [given_up(10, ROOM, "127.0.0.1:8998", f"{status}; not a bootstrap server's answer")]
    else:
        lines += [
            f"{at(10)} Failed to get prefill server info: {status}, <html>no</html>",
            decode_failed(
                12, ROOM, "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:8998", "handshake"
            ),
        ]
    given = files(lines, [carried(10, ROOM, rid(ROOM + 1), "127.0.0.1", 8998)], [], RIGHT)
    room = pasted.room(tmp_path, ROOM, **given)
    assert room.cause is not None
    assert room.cause.code == "PD205"
    assert f"127.0.0.1:8998 answered {status}" in room.cause.headline
    told = diagnose(pasted.library(tmp_path, **given))
    assert [(one.code, one.rooms) for one in told.findings] == [("PD205", (ROOM,))]
    assert "PD209" not in {one.code for one in told.remarks}


def unclaimed(folder: Path, *more: str, ports: tuple[int, int] | None = None, router: tuple[str, ...] = ()) -> Room:
    """A request for the decode alone. p1's log ends long before, so p0's own line is all that says so."""
    decode = [carried(10, ROOM, rid(ROOM), "127.0.0.1", 8998), sending(10, ROOM), decode_failed(40, ROOM, NONE_CAME)]
    logs = files(
        decode, [*got_info(10, ROOM), f"{at(40)} room={ROOM} no request for it came here: {NONE_CAME}"], [], ports
    )
    logs["p1"] = [*logs["p1"][:2], *more]
    if router:
        logs["router"] = [*logs["router"], *router]
    return pasted.room(folder, ROOM, **logs)


@pytest.mark.parametrize("ports", [None, RIGHT])
def test_a_page_list_without_a_request_is_no_request_elsewhere(tmp_path: Path, ports: tuple[int, int] | None) -> None:
    cause = unclaimed(tmp_path, ports=ports).cause
    assert cause is not None
    assert (cause.code, cause.side, cause.instance) == ("PD703", "", "p0")
    assert cause.headline.startswith("p0 never got the request of this room")
    assert "got the request, but" not in cause.headline


def test_a_request_that_another_prefill_shows_went_to_the_wrong_one(tmp_path: Path) -> None:
    asked = carried(10, ROOM, rid(ROOM + 1), "127.0.0.1", 8998)
    cause = unclaimed(tmp_path, asked, prefill_timed_out(31, ROOM), ports=RIGHT).cause
    assert cause is not None
    assert cause.code != "PD703"
    assert "p1" in cause.headline


def test_a_request_that_the_router_sent_to_another_prefill_went_to_the_wrong_one(tmp_path: Path) -> None:
    """Its log ends before, so the router's line alone names it."""
    where = f"room={ROOM} rid={rid(ROOM)} request_id={rid(ROOM)} attempt=1 prefill=http://127.0.0.1:30001 "
    dispatch = f"{at(9)} Dispatch {where}decode=http://127.0.0.1:30002 bootstrap=127.0.0.1:8998 path=/generate"
    cause = unclaimed(tmp_path, router=(dispatch,), ports=RIGHT).cause
    assert cause is not None
    assert (cause.code, cause.side) == ("PD202", "router")
    assert "p1" in cause.why


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (" answered something else than SGLang's: Object missing required field `attn_tp_size`", "something else than"),
        (": no HTTP answer (illegal status line); is this the bootstrap port, not a rank's?", "no HTTP"),
    ],
)
def test_an_answer_that_is_no_bootstrap_servers_is_not_silence(tmp_path: Path, why: str, told: str) -> None:
    line = given_up(10, ROOM, "127.0.0.1:9999", "").removesuffix(": ") + why
    room = pasted.room(tmp_path, ROOM, **files([carried(10, ROOM, rid(ROOM), "127.0.0.1", 9999), line], [], [], None))
    assert room.cause is not None
    assert room.cause.code == "PD205"
    assert f"127.0.0.1:9999 answered {told}" in room.cause.why
    assert not any("nobody answered" in str(one) for one in room.evidence)


def test_silence_is_not_called_a_closed_port(tmp_path: Path) -> None:
    why = "no answer within 5 s; is the port open from this host?"
    decode = [carried(10, ROOM, rid(ROOM), "127.0.0.1", 9999), given_up(10, ROOM, "127.0.0.1:9999", why)]
    room = pasted.room(tmp_path, ROOM, **files(decode, [], [], None))
    assert room.cause is not None
    assert room.cause.why.startswith("nothing answers at 127.0.0.1:9999")
