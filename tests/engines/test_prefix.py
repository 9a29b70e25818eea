"""Each layout of a line's beginning, and that no bytes at all are too strange for it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.engines.prefix import Prefix, Stamp, split
from tests.cases import for_each
from tests.engines.recorded import FILES, lines

DAY = (2026, 11, 21)


def stamp(hour: int, minute: int, second: int, micro: int = 0, zone: int | None = None, step: float = 1.0) -> Stamp:
    return Stamp(*DAY, hour, minute, second, micro, zone, step)


@for_each(
    ("raw", "expected"),
    [
        (b"[2026-11-21 01:34:20] kv", Prefix(stamp(1, 34, 20), "", "", "", "kv")),
        (b"[2026-11-21 01:34:20 DP0 TP1] kv\n", Prefix(stamp(1, 34, 20), "DP0 TP1", "", "", "kv")),
        (
            b"[2026-11-21 01:34:20 DP1 PP0 ATTN_CP1 MOE_DP0 TP12 EP3] kv",
            Prefix(stamp(1, 34, 20), "DP1 PP0 ATTN_CP1 MOE_DP0 TP12 EP3", "", "", "kv"),
        ),
        (b"[2026-11-21 01:34:20.123 TP1] kv", Prefix(stamp(1, 34, 20, 123000, None, 0.001), "TP1", "", "", "kv")),
        (b"[04:46:19 TP0] kv", Prefix(Stamp(0, 0, 0, 4, 46, 19, 0, None, 1.0), "TP0", "", "", "kv")),
        (
            b"[2026-11-21 01:19:09] WARNING server_args.py:2326: forced",
            Prefix(stamp(1, 19, 9), "", "warning", "", "forced"),
        ),
        (
            b'[2026-11-21 02:06:36] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK',
            Prefix(stamp(2, 6, 36), "", "info", "", '127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK'),
        ),
        (
            b"INFO:     Application startup complete.\r\n",
            Prefix(None, "", "info", "", "Application startup complete."),
        ),
        (
            b"[2026-11-21 19:44:40] WARNING Finish room=1",
            Prefix(stamp(19, 44, 40), "", "warning", "", "Finish room=1"),
        ),
        (
            b"2026-11-21 01:26:10  INFO smg::server: /srv/src/server.rs:794: Starting router",
            Prefix(stamp(1, 26, 10), "", "info", "", "Starting router"),
        ),
        (
            b"2026-11-21T01:26:10.5Z DEBUG smg::server: up",
            Prefix(stamp(1, 26, 10, 500000, 0, 0.1), "", "debug", "", "up"),
        ),
        (
            b'2026-11-21 01:26:22  INFO http_request{method=GET uri=/health request_id="req-1" latency=7}: smg::request'
            b": m.rs:3: done",
            Prefix(
                stamp(1, 26, 22), "", "info", "req-1", "done", 'method=GET uri=/health request_id="req-1" latency=7'
            ),
        ),
        (
            b"2026-11-21 02:06:32 NIXL INFO    _api.py:281 Initialized NIXL agent: 85e1",
            Prefix(stamp(2, 6, 32), "", "info", "", "Initialized NIXL agent: 85e1"),
        ),
        (
            b"W1121 02:01:19.957460 25262 transfer_engine_py.cpp:120] Using default malloc",
            Prefix(Stamp(0, 11, 21, 2, 1, 19, 957460, None, 1e-6), "", "warning", "", "Using default malloc"),
        ),
        (b"KeyError: 777001", Prefix(None, "", "", "", "KeyError: 777001")),
        (b"", Prefix(None, "", "", "", "")),
        (b"[2026-11-21 25:61:00] kv", Prefix(None, "", "", "", "[2026-11-21 25:61:00] kv")),
    ],
)
def test_layouts(raw: bytes, expected: Prefix) -> None:
    assert split(raw) == expected


INNER = b"[2026-11-21 01:34:20 TP1] room=5 is bootstrapped"


@for_each(
    "around",
    [
        b"%s",
        b"prefill-0  \xe2\x94\x82 %s",  # pdctl logs
        b"\x1b[34mprefill-0\x1b[0m  \x1b[2m\xe2\x94\x82\x1b[0m %s",
        b"pd-prefill-1  | %s",  # docker compose
        b"[pod/prefill-0/engine] %s",  # kubectl logs --prefix
        b"2026-11-21T01:34:20.123456789Z %s",  # kubectl logs --timestamps
        b"2026-11-21T03:34:20.1+02:00 stderr F %s",  # CRI
        b"[pod/prefill-0/engine] 2026-11-21T01:34:20.123456789Z %s",
        b"Nov 21 01:34:20 node-7 sglang[4711]: %s",  # journald, syslog
    ],
)
def test_a_collector_s_words_are_taken_off(around: bytes) -> None:
    raw = around % INNER
    prefix = split(raw)
    assert prefix.message == "room=5 is bootstrapped"
    assert prefix.ranks == "TP1"


def test_the_collector_s_stamp_has_the_zone() -> None:
    inside = split(b"2026-11-21T03:34:20.25+02:00 stderr F " + INNER).stamp
    assert inside == stamp(3, 34, 20, 250000, 7200, 0.01)
    syslog = split(b"Nov 21 01:34:25 node-7 sglang[4711]: KeyError: 7").stamp
    assert syslog == Stamp(0, 11, 21, 1, 34, 25, 0, None, 1.0)
    # journald's second is no better than the line's own.
    assert split(b"Nov 21 01:34:25 node-7 sglang[4711]: " + INNER).stamp == stamp(1, 34, 20)


def test_docker_s_json_file() -> None:
    raw = b'{"log":"' + INNER + b'\\n","stream":"stderr","time":"2026-11-21T01:34:20.5Z"}'
    prefix = split(raw)
    assert (prefix.message, prefix.ranks) == ("room=5 is bootstrapped", "TP1")
    assert prefix.stamp == stamp(1, 34, 20, 500000, 0, 0.1)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"timestamp":"2026-11-21 20:27:19","level":"INFO","message":"up","worker_url":"http://w","target":"smg::w"}',
        b'{"timestamp":"2026-11-21T20:27:19Z","level":"INFO","fields":{"message":"up","worker_url":"http://w"},"target":"s"}',
    ],
)
def test_tracing_json(raw: bytes) -> None:
    prefix = split(raw)
    assert (prefix.message, prefix.level) == ("up worker_url=http://w", "info")


@for_each("raw", [b'{"log": 5}', b'{"timestamp": 1}', b'{"log":"' + b"[" * 9000, b'{"timestamp":[' * 400])
def test_json_of_another_kind_is_all_message(raw: bytes) -> None:
    assert split(raw).message == raw.decode()


def test_colour_inside_the_message_is_gone() -> None:
    head = b"\x1b[2m2026-11-21 01:26:10\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2msmg::w\x1b[0m\x1b[2m:\x1b[0m "
    raw = head + b"up \x1b[3murl\x1b[0m=x"
    assert split(raw).message == "up url=x"


def test_every_recorded_line_with_a_stamp_says_when() -> None:
    for path in FILES:
        for line in lines(path):
            if line[:6] == b"[2026-":
                found = split(line).stamp
                assert found is not None
                assert found[:3] == DAY


heads = st.sampled_from(
    [
        b"",
        b"[2026-11-21 01:34:20] ",
        b"[01:34:20 TP0] ",
        b"2026-11-21 01:26:10  INFO ",
        b"x | ",
        b"\x1b[2m",
        b'{"log":"',
    ]
)


@settings(max_examples=300, deadline=None)
@given(heads, st.binary(max_size=300))
@example(b"", b"\x1b[" * 50)
@example(b"", b"[" * 200)
@example(b"", b"[pod/" + b"a" * 200)
@example(b"2026-11-21 01:26:10  INFO ", b"a{" * 100)
def test_any_bytes(head: bytes, tail: bytes) -> None:
    raw = head + tail
    prefix = split(raw)
    assert isinstance(prefix.message, str)
    assert split(raw) == prefix


@for_each("unit", [b"a", b"[", b"\x1b[0m", b"a{b=", b" | ", b"::", b"2026-11-21 ", b"\xff", b"http_request{"])
def test_long_lines_are_read(unit: bytes) -> None:
    raw = (b"2026-11-21 01:26:10  INFO " + unit * (1_000_000 // len(unit)))[:1_000_000]
    assert split(raw).stamp is not None
    assert isinstance(split(unit * (1_000_000 // len(unit))).message, str)
