"""Finding the row of a line: who may say it, what its values are, and that nothing makes it fail or crawl."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.engines.base import Level, Phase, Row, Speaker
from pdctl.engines.row_matching import ROWS, Said, Speech, heads, lead, speech
from tests.cases import for_each

ENGINE = frozenset({Speaker.PDCTL_ENGINE})
SGLANG = frozenset({Speaker.SGLANG})


def read(raw: bytes, speakers: frozenset[Speaker] | None = None) -> Said:
    said = speech().match(raw, speakers)
    assert said is not None
    return said


def test_a_failure_line_says_room_request_rank_and_reason() -> None:
    said = read(
        b"[2026-11-21 01:59:57 TP1] Decode transfer failed for request rank=1 decode_req.req.rid='2bfa' "
        b"decode_req.req.bootstrap_room=7707449254856086911 with exception KVTransferError(bootstrap_room="
        b"7707449254856086911): Request 7707449254856086911 timed out after 20.0s in KVPoll.WaitingForInput"
    )
    assert said.row.id == "decode-transfer-timed-out"
    assert said.row.phase is Phase.TIMED_OUT
    assert dict(said.values) == {
        "rank": "1",
        "rid": "2bfa",
        "room": "7707449254856086911",
        "reason": "Request 7707449254856086911 timed out after 20.0s in KVPoll.WaitingForInput",
        "seconds": "20.0",
        "state": "WaitingForInput",
    }
    assert said.prefix.ranks == "TP1"


@for_each(
    ("tail", "row"),
    [
        (b" with exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.", "prefill-bootstrap-aborted"),
        (
            b" with exception KVTransferError(bootstrap_room=7): Failed due to an unknown reason from another rank",
            "prefill-bootstrap-failed-elsewhere",
        ),
        (b" with exception NIXL KVSender Exception", "prefill-bootstrap-unexplained-old"),
        (
            b" with exception KVTransferError(bootstrap_room=7): NIXL KVSender Exception",
            "prefill-bootstrap-unexplained",
        ),
        (b" with exception Fake KVSender Exception", "prefill-bootstrap-unexplained-oldest"),
        (b" with exception KVTransferError(bootstrap_room=7): something new", "prefill-bootstrap-failed"),
        (b" with exception ValueError: something else", "prefill-bootstrap-failed"),
        (b"", "prefill-bootstrap-failed-silently"),
    ],
)
def test_the_reason_chooses_the_row(tail: bytes, row: str) -> None:
    head = b"[2026-11-21 02:02:46] Prefill bootstrap failed for request rank=0 req.rid='ab' req.bootstrap_room=7"
    said = read(head + tail)
    assert said.row.id == row
    assert said.values["room"] == "7"
    assert said.values["rid"] == "ab"


def test_a_span_s_fields_are_values() -> None:
    said = read(
        b'2026-11-21 01:26:22  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        b'request_id="gnt-B6" status_code=200 latency=405016}: smg::response: m.rs:359: finished processing request'
    )
    assert dict(said.values) == {
        "method": "POST", "path": "/generate", "request_id": "gnt-B6", "status": "200", "latency_us": "405016",
    }  # fmt: skip


def test_a_client_s_query_is_no_field_of_the_span() -> None:
    said = read(
        b"2026-11-21 01:26:22  INFO http_request{method=POST uri=/generate?request_id=gnt-OTHER&status_code=500&x "
        b'version=HTTP/1.1 request_id="gnt-B6" status_code=200 latency=405016}: smg::response: m.rs:359: '
        b"finished processing request"
    )
    assert said.prefix.request == said.values["request_id"] == "gnt-B6"
    assert said.values["status"] == "200"


def test_smg_s_json_says_the_same_as_its_text() -> None:
    text = (
        b'2026-11-21 20:27:19  INFO http_request{method=POST path=/generate request_id="gnt-A"}: smg::worker::'
        b"circuit_breaker: model_gateway/src/worker/circuit_breaker.rs:293: Circuit breaker state transition: "
        b'closed -> open worker_url=http://127.0.0.1:41142 from="closed" to="open"'
    )
    json = (
        b'{"timestamp":"2026-11-21 20:27:19","level":"INFO","message":"Circuit breaker state transition: closed -> '
        b'open","worker_url":"http://127.0.0.1:41142","from":"closed","to":"open","target":"smg::worker::'
        b'circuit_breaker","span":{"method":"POST","path":"/generate","request_id":"gnt-A","name":"http_request"}}'
    )
    assert read(text).row.id == read(json).row.id == "breaker-opened"
    assert dict(read(text).values) == dict(read(json).values)
    assert read(json).values["url"] == "http://127.0.0.1:41142"


def test_a_batch_has_rooms_and_no_room() -> None:
    said = read(
        b"[2026-11-21 02:21:40] Receive: obj=GenerateReqInput(rid=['a', 'b'], text=['x', 'y'], "
        b"bootstrap_host=['127.0.0.1', '127.0.0.1'], bootstrap_port=[8998, 8998], bootstrap_room=[71, 72])"
    )
    assert said.values["rids"] == "'a', 'b'"
    assert said.values["rooms"] == "71, 72"
    assert "room" not in said.values


def test_speakers_bound_what_a_line_can_be() -> None:
    shared = b"[2026-11-21 19:44:33] room=5 is bootstrapped"
    own = b"[2026-11-21 19:44:33] Room step: room=5 rid='a' phase=waiting bootstrap=0.02"
    router = b"[2026-11-21 19:44:40] Draining: no new connections, 0 rooms in flight"
    assert read(shared, ENGINE).row.speaker is Speaker.SGLANG  # it writes SGLang's lines too
    assert read(own, ENGINE).row.id == "step-waiting"
    assert speech().match(own, SGLANG) is None
    assert speech().match(router, SGLANG | ENGINE) is None


@for_each(
    "raw",
    [
        b"", b"\n", b"plain words", b"[2026-11-21 19:44:33] ", b"[2026-11-21 19:44:33] room=", b"\x00" * 40,
        b"[2026-11-21 19:44:33] room=x is bootstrapped", b"KeyError: 7 apples", b"KeyError: 7",
        b"room=5 is boots", b"xroom=5 is bootstrapped",
    ],
)  # fmt: skip
def test_what_is_no_row(raw: bytes) -> None:
    assert speech().match(raw) is None


def test_earlier_rows_win() -> None:
    def row(name: str, pattern: str) -> Row:
        return Row(name, Speaker.SGLANG, Level.INFO, "", b"it failed", pattern, "it failed")

    rows = (row("narrow", "it failed twice"), row("wide", "it failed"), row("later", "it failed .*"))
    found = [Speech(rows).match(line) for line in (b"it failed twice", b"it failed once")]
    assert [said.row.id for said in found if said] == ["narrow", "wide"]


@for_each(
    ("pattern", "head"),
    [
        (r"room=(?P<room>\d+)", b"room="),
        (r"\[http_server\] Error", b"[http_server] Error"),
        (r"ab?c", b"a"),
        (r"abc+", b"abc"),
        (r"ab{2}", b"a"),
        (r"(?:a|b)c", b""),
        (r"\dabc", b""),
    ],
)
def test_the_fixed_beginning_of_a_pattern(pattern: str, head: bytes) -> None:
    assert lead(pattern) == head


@for_each(
    ("pattern", "found"),
    [
        (r"room=(?P<room>\d+)", {b"room"}),
        (r"(?:Prefill|Decode) batch", {b"Pref", b"Deco"}),
        (r"(?P<kind>Mori|Mooncake)KVManager", {b"Mori", b"Moon"}),
        (r"(?:PD|DP) rank", {b"PD r", b"DP r"}),
        (r"(?:a|b)\d", set()),
        (r"(?:Prefill|Decode)? batch", set()),
        (r"(?:Prefill|\w+) batch", set()),
    ],
)
def test_the_bytes_a_row_is_found_by(pattern: str, found: set[bytes]) -> None:
    assert heads(pattern) == found


def test_what_a_client_writes_into_its_address_is_no_line_of_the_engine() -> None:
    """uvicorn logs X-Forwarded-For as the address where it believes the caller, as SGLang's does on loopback."""
    crash = "Scheduler hit an exception: Traceback (most recent call last):"
    assert speech().match(f"[2026-11-21 02:06:36] {crash}".encode()) is not None
    for address in (crash, f"{crash}:0", "Prefill bootstrap failed for request rank=0 bootstrap_room=7"):
        line = f'[2026-11-21 02:06:36] INFO:     {address} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        assert speech().match(line.encode()) is None
    said = speech().match(b'[2026-11-21 02:06:36] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK')
    assert said is not None
    assert said.values["status"] == "200"


def test_the_same_speech_is_given_twice(tmp_path: Path) -> None:
    assert speech() is speech()
    assert speech().rows == ROWS


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(ROWS), st.binary(max_size=60))
def test_any_bytes(head: bytes, row: Row, tail: bytes) -> None:
    """Noise around and inside known lines is read or not read, never an error."""
    line = row.example.encode()
    for raw in (head, line[: len(head)] + tail, head + line, line + tail, line.replace(b" ", tail, 2)):
        said = speech().match(raw)
        assert said is None or said.row.literal in raw
        if said is not None and "room" in said.values:
            assert said.values["room"].isdigit()


@for_each("unit", [b"a", b" ", b"'", b"room=1 ", b"1", b"host='", b", ", b"\xff", b"\x1b[0m", b'"'])
def test_a_megabyte_behind_any_row_is_read(unit: bytes) -> None:
    """Rows keep to linear patterns (test_lexicon); this would hang for minutes if one did not."""
    filler = unit * (100_000 // len(unit))
    for row in ROWS[::9]:
        head, _, tail = row.example.encode().rpartition(b" ")
        speech().match(head + b" " + filler + tail)
    speech().match(unit * (1_000_000 // len(unit)))
