"""One small incident for each cause, and the one next to it that must not be taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import (
    at,
    decode_failed,
    decode_timed_out,
    engine,
    finished,
    got_info,
    prefill_failed,
    prefill_timed_out,
    received,
    rid,
    sending,
)
from tests.trace.recordings import diagnosis, library, logs, tracer
from tests.trace.routers import D0, P0, P1, answered, came, left, line, sent, starting

if TYPE_CHECKING:
    from pdctl.trace.room import Room

ROOM = 7707449254856086911
LOGGED = ", log_requests=True"
RIGHT, NULL, SWAPPED = (8998, 8999), (None, None), (8999, 8998)


def one_pair(folder: Path, prefill: list[str], decode: list[str], router: list[str] | None = None) -> Room:
    listed = starting(RIGHT).replace(f', ("{P1}", Some(8999))', "")
    return pasted.room(folder, ROOM, p0=prefill, d0=decode, router=[listed, *(router or [])])


def p0(*lines: str, until: int = 1800, more: str = "") -> list[str]:
    return engine("prefill", 30000, 8998, *lines, until=until, more=more)


def p1(*lines: str, more: str = "") -> list[str]:
    return engine("prefill", 30001, 8999, *lines, more=more)


def d0(*lines: str, until: int = 1800, more: str = "") -> list[str]:
    return engine("decode", 30002, 8998, *lines, until=until, more=more)


def code(room: Room) -> str | None:
    return room.cause.code if room.cause else None


@pytest.mark.parametrize(("ports", "wanted"), [(NULL, "PD201"), (SWAPPED, "PD203"), ((8998, 8998), "PD202")])
def test_ports_that_lead_to_the_other_prefill(
    tmp_path: Path, ports: tuple[int | None, int | None], wanted: str
) -> None:
    room = pasted.room(
        tmp_path, ROOM, router=[starting(ports)], p0=p0(*got_info(11, ROOM)),
        p1=p1(prefill_timed_out(31, ROOM)), d0=d0(sending(11, ROOM), decode_timed_out(31, ROOM)),
    )  # fmt: skip
    assert (room.prefill_requested, room.prefill_contacted) == ("p1", "p0")
    assert code(room) == wanted
    assert "--prefill http://127.0.0.1:30000 8998 --prefill http://127.0.0.1:30001 8999" in room.fix


def test_swapped_ports_are_not_said_of_a_port_that_is_only_wrong(tmp_path: Path) -> None:
    """p1's port is the other's, p0's is nobody's: not the other way round."""
    room = pasted.room(
        tmp_path, ROOM, router=[starting((9000, 8998))], p0=p0(*got_info(11, ROOM)),
        p1=p1(prefill_timed_out(31, ROOM)), d0=d0(sending(11, ROOM), decode_timed_out(31, ROOM)),
    )  # fmt: skip
    assert code(room) == "PD202"


REFUSED = (
    "Error fetching prefill server info from bootstrap: HTTPConnectionPool(host='127.0.0.1', port={port}): Max retries "
    "exceeded with url: /route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1 (Caused by "
    "NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))"
)


@pytest.mark.parametrize(("port", "wanted"), [(9999, "PD202"), (30000, "PD206"), (8998, "PD205")])
def test_a_bootstrap_server_that_is_not_there(tmp_path: Path, port: int, wanted: str) -> None:
    why = f"Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:{port}"
    lines = [f"{at(11)} {REFUSED.format(port=port)}", decode_failed(25, ROOM, why, "handshake")]
    room = one_pair(tmp_path, p0(prefill_timed_out(31, ROOM)), d0(*lines))
    assert (room.prefill_requested, room.prefill_contacted) == ("p0", None)
    assert code(room) == wanted
    assert not any("page list" in one.what for one in room.missing_evidence)


def test_a_decode_that_died(tmp_path: Path) -> None:
    """Its log stops, the router finds nobody: that is why the prefill waited."""
    router = [
        came(40, "a"), *sent(40, "a", P0),
        line(41, "a", f"Decode request failed decode_url={D0} error=error sending request for url ({D0}/generate)"),
    ]  # fmt: skip
    room = one_pair(tmp_path, p0(prefill_timed_out(60, ROOM)), d0(until=20), router)
    assert code(room) == "PD704"
    assert room.outcome is RoomOutcome.FAILED
    assert room.decode is None


def test_a_log_that_merely_stops_is_nobodys_death(tmp_path: Path) -> None:
    room = one_pair(tmp_path, p0(prefill_timed_out(60, ROOM)), d0(until=20))
    assert code(room) != "PD704"


def test_a_prefill_that_died(tmp_path: Path) -> None:
    lost = f"{at(50)} Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), 1 requests affected"
    why = "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)"
    room = one_pair(
        tmp_path, p0(*got_info(11, ROOM), until=20), d0(sending(11, ROOM), lost, decode_failed(50, ROOM, why))
    )  # fmt: skip
    assert code(room) == "PD705"
    assert room.prefill_contacted == "p0"


def test_two_requests_with_one_room(tmp_path: Path) -> None:
    second = received(12, ROOM, "second-request")
    room = one_pair(
        tmp_path, p0(*got_info(11, ROOM), more=LOGGED),
        d0(received(11, ROOM, "first-request"), second, decode_failed(13, ROOM, "Failed"), more=LOGGED),
    )  # fmt: skip
    assert code(room) == "PD707"
    assert room.cause is not None
    assert room.cause.side == ""
    assert room.rids["d0"].startswith("first-request, second-request")


def test_a_leg_the_router_never_sent(tmp_path: Path) -> None:
    """The decode logs every request from its start on, and has no line of this room."""
    prefill = p0(received(11, ROOM, rid(ROOM + 1)), prefill_timed_out(31, ROOM), more=LOGGED)
    assert code(one_pair(tmp_path, prefill, d0(more=LOGGED))) == "PD703"


def test_a_leg_that_may_stand_in_the_lost_part_of_a_log(tmp_path: Path) -> None:
    prefill = p0(received(11, ROOM, rid(ROOM + 1)), prefill_timed_out(31, ROOM), more=LOGGED)
    unlogged = code(one_pair(tmp_path, prefill, d0()))
    cut = code(one_pair(tmp_path, prefill, d0(received(25, ROOM + 5, "another"), more=LOGGED)[2:]))
    assert (unlogged, cut) == ("PD702", "PD702")


def test_a_decode_without_room(tmp_path: Path) -> None:
    full = [
        f"{at(second)} Decode batch, #running-req: 4, #token: 4000, token usage: 0.98, pre-allocated usage: 0.00, "
        "#prealloc-req: 3, #transfer-req: 0, #retracted-req: 0, cuda graph: False, gen throughput (token/s): 3.55, "
        "#queue-req: 0"
        for second in (15, 25)
    ]
    assert code(one_pair(tmp_path, p0(prefill_timed_out(31, ROOM)), d0(*full))) == "PD501"
    roomy = [line.replace("#prealloc-req: 3", "#prealloc-req: 0") for line in full]
    assert code(one_pair(tmp_path, p0(prefill_timed_out(31, ROOM)), d0(*roomy))) == "PD702"


@pytest.mark.parametrize(("speed", "wanted"), [("0.01 GB/s", "PD412"), ("12.00 GB/s", None)])
def test_a_cache_that_crawls(tmp_path: Path, speed: str, wanted: str | None) -> None:
    times = "input_len=5, cached_input_len=0, output_len=8, attempts=0, type=%s): queue_duration=0.14ms"
    prefill = (
        f"{at(40)} ReqTimeStats(rid={rid(ROOM + 1)}, bootstrap_room={ROOM}, {times % 'prefill'}, "
        f"transfer_speed={speed}, transfer_total=200.00 MB"
    )
    decode = f"{at(41)} ReqTimeStats(rid={rid(ROOM)}, bootstrap_room={ROOM}, {times % 'decode'}"
    room = one_pair(tmp_path, p0(prefill), d0(decode))
    assert room.outcome is RoomOutcome.OK
    assert code(room) == wanted


PAGES_AND_BYTES = "pages=256 bytes=8388608"
ARRIVED = f"{at(14)} room={ROOM} KV cache arrived rid='{rid(ROOM)}' {PAGES_AND_BYTES} seconds=3.05 from={P0[7:]}"
LAST_STEP = f"{at(14)} room={ROOM} KV transfer done rid='{rid(ROOM)}' {PAGES_AND_BYTES} seconds=2.99"


def chunk(of: int, seconds: float, *, last: bool) -> str:
    return f"{at(13)} room={ROOM} sent chunk pages={256 // of} last={last} bytes={8388608 // of} seconds={seconds:.6f}"


def moved_fast(speed: str) -> str:
    return (
        f"{at(14)} ReqTimeStats(rid={rid(ROOM)}, bootstrap_room={ROOM}, input_len=4094, cached_input_len=0, "
        "output_len=1, type=prefill): bootstrap_duration=12.52ms, queue_duration=0.52ms, forward_duration=2943.74ms, "
        f"transfer_duration=8.65ms, entry_time=1795489363.390, transfer_speed={speed} GB/s, transfer_total=8.39 MB"
    )


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ([*[chunk(8, 0.0004, last=at == 7) for at in range(8)], LAST_STEP, moved_fast("1.55")], None),
        ([*[chunk(8, 0.0004, last=at == 7) for at in range(8)], LAST_STEP], None),
        ([], None),  # without the prefill's lines, nothing tells for how long it computed
        ([chunk(1, 2.98, last=True), LAST_STEP], "PD412"),
        ([chunk(1, 0.0001, last=True), LAST_STEP], "PD412"),
        ([LAST_STEP, moved_fast("0.002800")], "PD412"),
    ],
)
def test_the_computing_of_a_long_prompt_is_no_slow_transfer(
    tmp_path: Path, sent: list[str], wanted: str | None
) -> None:
    began = [received(11, ROOM, rid(ROOM)), *got_info(11, ROOM)]
    took = [received(11, ROOM, rid(ROOM + 1)), sending(11, ROOM), ARRIVED, finished(15, ROOM, rid(ROOM + 1))]
    room = one_pair(tmp_path, p0(*began, *sent), d0(*took))
    assert (room.outcome, code(room)) == (RoomOutcome.OK, wanted)


def test_a_client_that_left(tmp_path: Path) -> None:
    """Both sides had met; then the request was aborted, and nothing had failed before."""
    room = one_pair(
        tmp_path, p0(*got_info(11, ROOM), prefill_failed(16, ROOM, "Aborted by AbortReq.", "transfer")),
        d0(sending(11, ROOM), decode_failed(16, ROOM, "Aborted by AbortReq.")),
    )  # fmt: skip
    assert code(room) == "PD706"
    assert room.cause is not None
    assert room.cause.side == ""  # no line tells whether it was the client or somebody who aborted the request


def test_a_client_that_left_because_nothing_came_is_not_the_cause(tmp_path: Path) -> None:
    room = pasted.room(
        tmp_path, ROOM, router=[starting(NULL)], p0=p0(*got_info(11, ROOM)),
        p1=p1(prefill_failed(16, ROOM, "Aborted by AbortReq.")),
        d0=d0(sending(11, ROOM), decode_failed(16, ROOM, "Aborted by AbortReq.")),
    )  # fmt: skip
    assert code(room) == "PD201"


def test_an_abort_while_the_other_sides_log_is_missing_says_nothing_of_the_client(tmp_path: Path) -> None:
    room = pasted.room(tmp_path, ROOM, p0=p0(prefill_failed(16, ROOM, "Aborted by AbortReq.")))
    assert code(room) is None
    assert room.missing_evidence


def test_the_right_prefill_and_no_cache(tmp_path: Path) -> None:
    """Asked and contacted are one; the logs say nothing of why the cache did not come."""
    chunk = f"{at(12)} sending kvcache to c2b1f0aa-77d1-4a8e-8c19-5ad1c3b0a001 with notif {ROOM}_kv_0_1_0"
    room = one_pair(
        tmp_path, p0(*got_info(11, ROOM), chunk), d0(sending(11, ROOM), decode_timed_out(31, ROOM))
    )  # fmt: skip
    assert (room.prefill_requested, room.prefill_contacted) == ("p0", "p0")
    assert code(room) == "PD708"


def test_fewer_ranks_on_the_decode(tmp_path: Path) -> None:
    lines = [sending(11, ROOM), decode_timed_out(31, ROOM)]
    listed = [came(10, "a"), *sent(10, "a", P0), *answered(31, "a", 500), left(31, "a", 500)]
    room = one_pair(tmp_path, p0(*got_info(11, ROOM), more=", tp_size=2"), d0(*lines, more=", tp_size=1"), listed)
    assert code(room) == "PD305"
    same = one_pair(tmp_path, p0(*got_info(11, ROOM), more=", tp_size=1"), d0(*lines, more=", tp_size=1"), listed)
    assert code(same) == "PD708"


def test_an_answer_in_full_is_an_answer(tmp_path: Path) -> None:
    asked = received(11, ROOM, rid(ROOM))
    room = one_pair(
        tmp_path, p0(received(11, ROOM, rid(ROOM + 1)), more=LOGGED),
        d0(asked, finished(12, ROOM, rid(ROOM)), more=LOGGED),
    )  # fmt: skip
    assert (room.outcome, code(room)) == (RoomOutcome.OK, None)
    assert (room.prefill_requested, room.prefill_contacted, room.decode) == ("p0", "p0", "d0")
    cut = one_pair(
        tmp_path, p0(received(11, ROOM, rid(ROOM + 1)), more=LOGGED),
        d0(asked, finished(12, ROOM, rid(ROOM), "{'type': 'abort', 'message': 'Aborted'}"), more=LOGGED),
    )  # fmt: skip
    assert (cut.outcome, code(cut)) == (RoomOutcome.ABORTED, "PD706")


def test_consequences_follow_the_cause(tmp_path: Path) -> None:
    """Of all that fits, the earliest is the cause, and each other one is named once."""
    lost = "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)"
    room = pasted.room(
        tmp_path, ROOM, router=[starting(NULL)], p0=p0(*got_info(11, ROOM), until=20),
        p1=p1(prefill_timed_out(60, ROOM)),
        d0=d0(sending(11, ROOM), f"{at(50)} {lost}, 1 requests affected", decode_failed(50, ROOM, lost)),
    )  # fmt: skip
    assert code(room) == "PD201"
    assert [one.split()[0] for one in room.consequences] == ["PD705"]


def test_a_decode_that_had_room_too_late(tmp_path: Path) -> None:
    """Its own line says how long the room stood in the prealloc queue: longer than the prefill waited."""

    def step(role: str, second: int, text: str) -> str:
        return f"{at(second)} Room step: room={ROOM} rid='{rid(ROOM + (role == 'p'))}' phase={text}"

    prefill = p0(step("p", 11, "bootstrap input_len=3"), prefill_timed_out(31, ROOM))
    for waited, wanted in (("29.069690", "PD501"), ("0.010000", None)):
        decode = d0(
            step("d", 11, "prealloc bootstrap_addr=127.0.0.1:8998"),
            step("d", 40, f"transfer pages=1 prealloc={waited}"), sending(40, ROOM),
            decode_failed(40, ROOM, f"room {ROOM} already failed on prefill rank tcp://127.0.0.1:44977"),
        )  # fmt: skip
        assert (code(one_pair(tmp_path, prefill, decode)) == "PD501") is (wanted == "PD501")


def killed(second: int, generation: int) -> str:
    return f"{at(second)} pdctl: p0 generation {generation} was killed by SIGKILL"


@pytest.mark.parametrize(("death", "wanted"), [(10, False), (61, True)])
def test_a_death_of_an_earlier_generation_is_none_of_this_rooms_business(
    tmp_path: Path, death: int, wanted: bool
) -> None:
    """The prefill that died was back before the request came."""
    lost = "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)"
    start = p0()[0].replace("02:00:00", "02:00:40")
    prefill = [*p0()[:2], killed(10, 1), start, *got_info(60, ROOM), *([killed(61, 2)] if death == 61 else [])]
    prefill.append(f'{at(200)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK')
    room = one_pair(tmp_path, prefill, d0(sending(60, ROOM), decode_failed(75, ROOM, lost)))
    assert (code(room) == "PD705") is wanted


@pytest.mark.parametrize(("second", "wanted"), [(12, "PD707"), (40, None)])
def test_two_requests_one_after_the_other_did_not_have_the_room_at_once(
    tmp_path: Path, second: int, wanted: str | None
) -> None:
    decode = [
        received(11, ROOM, "first-request"), finished(20, ROOM, "first-request"), received(second, ROOM, "the-second"),
        decode_failed(50, ROOM, "Failed").replace(rid(ROOM), "the-second"),
    ]  # fmt: skip
    room = one_pair(tmp_path, p0(*got_info(11, ROOM), more=LOGGED), d0(*decode, more=LOGGED))
    assert (code(room) == "PD707") is (wanted == "PD707")


def test_samples_of_one_request_share_its_room(tmp_path: Path) -> None:
    """n > 1: one request came, and two ids have its room; one of them is aborted, and no client left."""
    asked = received(11, ROOM, "the-request").replace("stream=False", "stream=False, sampling_params={'n': 2}")
    aborted = decode_failed(16, ROOM, "Aborted by AbortReq.").replace(rid(ROOM), "b-sample")
    done = f"{at(12)} ReqTimeStats(rid=a-sample, bootstrap_room={ROOM}, input_len=5, cached_input_len=0, output_len=8, "
    room = one_pair(
        tmp_path, p0(*got_info(11, ROOM)),
        d0(asked, sending(11, ROOM), f"{done}attempts=0, type=decode): queue_duration=0.14ms", aborted, more=LOGGED),
    )  # fmt: skip
    assert code(room) == "PD319"


STOPPED = f"{at(44)} Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), 2 requests affected"


@pytest.mark.parametrize(
    ("meanwhile", "said"), [(False, "stood still"), (True, "was not reached while its own log went on")]
)
def test_a_peer_that_was_there_and_did_not_answer(tmp_path: Path, meanwhile: bool, said: str) -> None:
    """SIGSTOP: its log stands still. A partition: it goes on, and the decode's heartbeats fail all the same."""
    lost = "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)"
    alive = [f'{at(second)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK' for second in range(30, 60, 2)]
    room = one_pair(
        tmp_path, p0(*(alive if meanwhile else [alive[0]]), *got_info(60, ROOM)),
        d0(sending(31, ROOM), STOPPED, decode_failed(44, ROOM, lost)),
    )  # fmt: skip
    assert code(room) == "PD717"
    assert room.cause is not None
    assert room.cause.instance == "p0"
    assert said in room.cause.why
    assert room.clocks == ()


def test_a_message_that_lay_unread_names_who_did_not_read_it(tmp_path: Path) -> None:
    """No heartbeat failed: the page list was read after the decode had given up, and its log has nothing in between."""
    other = 8463976258232842567
    decode = d0(sending(5, other), sending(31, ROOM), decode_timed_out(51, ROOM))
    assert code(one_pair(tmp_path, p0(*got_info(5, other), *got_info(70, ROOM)), decode)) == "PD717"
    ahead = one_pair(tmp_path, p0(*got_info(44, other), *got_info(70, ROOM)), decode)
    assert code(ahead) != "PD717"  # its clock is 39 s ahead: nothing was late


@pytest.mark.parametrize(("missed", "wanted"), [(29, "p0"), (None, None)])
def test_a_prefill_that_was_given_up_after_the_room(tmp_path: Path, missed: int | None, wanted: str | None) -> None:
    """The first heartbeat was missed while the room waited, the last one later. Lost at once: that was later, too."""
    tried = [f"{at(missed)} Attempting to reconnect to 127.0.0.1:8998..."] if missed else []
    lost = f"{at(36)} Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), 0 requests affected"
    alive = [f'{at(second)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK' for second in range(12, 60, 2)]
    decode = d0(sending(11, ROOM), *tried, decode_timed_out(31, ROOM), lost)
    room = one_pair(tmp_path, p0(*got_info(11, ROOM), *alive), decode)
    assert (room.cause.instance if room.cause and room.cause.code == "PD717" else None) == wanted


def overdue(second: int, room: int, waited: float, limit: float | None) -> str:
    said = f" (limit {limit}s): no transfer-done signal" if limit else ""
    return decode_failed(second, room, f"Request {room} timed out after {waited}s in KVPoll.WaitingForInput{said}")


@pytest.mark.parametrize(
    ("waited", "limit", "before", "wanted"),
    [
        (32.0, 6.0, None, "d0"),  # its own limit
        (32.0, None, 6.0, "d0"),  # SGLang names none, but gave up another room after as long
        (32.0, None, None, None),
        (32.0, 30.0, None, None),  # hardly late
        (320.0, 300.0, None, None),  # late, and the room had had most of its time before the process stood still
    ],
)
def test_whoever_gives_up_far_too_late_stood_still_itself(
    tmp_path: Path, waited: float, limit: float | None, before: float | None, wanted: str | None
) -> None:
    """A stopped decode counts on when it goes on: what it says of the prefill then is void."""
    since, until = (380, 412) if waited < 100 else (100, 420)
    other = 8463976258232842567
    earlier = [sending(20, other), overdue(26, other, before, None)] if before else []
    beats = [f'{at(second)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK' for second in range(100, 398, 2)]
    lost = f"{at(until)} Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), 1 requests affected"
    room = one_pair(
        tmp_path, p0(*got_info(since, ROOM), *beats[:3]),
        d0(*earlier, sending(since, ROOM), *(beats if waited > 100 else ()), overdue(until, ROOM, waited, limit),
           *([lost] if wanted else ())),
    )  # fmt: skip
    assert (room.cause.instance if room.cause and room.cause.code == "PD717" else None) == wanted


@pytest.mark.parametrize(("waiting", "wanted"), [("decode", None), ("prefill", "p0")])
def test_a_prefill_that_has_handed_over_its_cache_hung_for_nobody(
    tmp_path: Path, waiting: str, wanted: str | None
) -> None:
    """Its heartbeats fail, and this room needs it no more: unless the router still waits for its answer."""
    came_over = f"{at(32)} Room step: room={ROOM} rid='{rid(ROOM)}' phase=running transfer=0.012"
    where = "prefill=http://127.0.0.1:30000 decode=http://127.0.0.1:30002"
    url = "http://127.0.0.1:30000" if waiting == "prefill" else "http://127.0.0.1:30002"
    ended = (
        f"{at(61)} WARNING Finish room={ROOM} rid=r request_id=r attempt=1 {where} status=- outcome=failed "
        f"prefill_ms=30000.0 first_byte_ms=- total_ms=30000.0: {waiting} {url} did not finish within --request-timeout"
    )
    room = one_pair(tmp_path, p0(*got_info(31, ROOM)), d0(sending(31, ROOM), came_over, STOPPED, until=1800), [ended])
    assert (room.cause.instance if room.cause and room.cause.code == "PD717" else None) == wanted


@pytest.mark.parametrize(("silent", "wanted"), [(True, "PD717"), (False, "PD210")])
def test_a_rank_that_does_not_answer_is_the_prefills(tmp_path: Path, silent: bool, wanted: str) -> None:
    """The decode writes it, the prefill is named; where that wrote nothing either, it hung: its address was right."""
    why = "_register_kv_args to prefill 127.0.0.1:45795 failed: no answer within 5.0s (the rank announced itself there "
    why += "to bootstrap_addr: 127.0.0.1:8998)"
    alive = [f'{at(second)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK' for second in range(12, 50)]
    asked = [received(11, ROOM, rid(ROOM + 1))]
    room = one_pair(
        tmp_path, p0(*asked, *(alive[-3:] if silent else alive), more=LOGGED),
        d0(f"{at(11)} Room step: room={ROOM} rid='{rid(ROOM)}' phase=prealloc bootstrap_addr=127.0.0.1:8998",
           decode_failed(20, ROOM, why, "handshake")),
    )  # fmt: skip
    assert code(room) == wanted
    assert room.cause is not None
    assert (room.cause.side, room.cause.instance) == ("prefill", "p0")


def test_a_decode_that_was_killed_while_it_answered(tmp_path: Path) -> None:
    """Our router names the room and which of its connections broke; the launcher writes the end a moment later."""
    where = f"room={ROOM} rid=r request_id=r attempt=1 prefill={P0} decode={D0}"
    router = [
        f"{at(10)} Dispatch {where} bootstrap=127.0.0.1:8998 path=/generate",
        f"{at(14)} WARNING Finish {where} status=200 outcome=broken prefill_ms=12.2 first_byte_ms=12.1 "
        f"total_ms=4000.5: decode {D0} closed the connection in the middle of its answer",
    ]
    decode = [
        *d0(sending(11, ROOM), f"{at(12)} room={ROOM} KV cache arrived rid='x' pages=1 bytes=32768 seconds=0.007810 "
            "from=127.0.0.1:8998", until=13),
        f"{at(14)} pdctl: d0 generation 1 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)",
    ]  # fmt: skip
    room = pasted.room(tmp_path, ROOM, router=router, p0=p0(*got_info(11, ROOM)), d0=decode)
    assert code(room) == "PD704"
    assert room.cause is not None
    assert "killed by SIGKILL" in room.cause.why


def test_a_prefill_that_crashed_is_not_looked_for_among_the_killed(tmp_path: Path) -> None:
    """Its own log says of what it died, so the room gets the fix that `diagnose` gives for this death."""
    room = tracer("1p1d-duplicate-room-debug-sgl058").trace(778001)
    assert room.cause is not None
    assert room.cause.code == "PD705"
    (death,) = diagnosis("1p1d-duplicate-room-debug-sgl058").deaths
    assert room.fix == death.fix == "draw a fresh random room for every attempt"
    log = tmp_path / "prefill0.log"
    lines = Path(logs("1p1d-duplicate-room-debug-sgl058", "decode")[0]).read_text().splitlines(keepends=True)
    log.write_text("".join(line.replace("KeyError: 777001", "ZeroDivisionError: division") for line in lines))
    told = library([str(log), *logs("1p1d-duplicate-room-debug-sgl058", "prefill")])
    (death,) = diagnose(told).deaths
    assert Tracer(told).trace(778001).fix == death.fix == f"grep -nE -m1 -A100 'Traceback|killed by SIG' {log}"
