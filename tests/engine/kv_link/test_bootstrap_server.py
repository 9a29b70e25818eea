"""The bootstrap server answers as sglang 0.5.23's does, and takes hostile input without blinking."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdctl.engine.prefill.bootstrap_server import BootstrapProtocol, BootstrapServer
from pdctl.engine.prefill.rank_table import PARAMETERS, RankTable
from pdctl.errors import LaunchError
from tests.cases import for_each
from tests.engine.kv_link.rig import HOST, bootstrap
from tests.ports import free_port

JSON, TEXT = "application/json; charset=utf-8", "text/plain; charset=utf-8"
SGLANG = os.environ.get("PDCTL_TEST_SGLANG_PYTHON", "")


def row(**changes: Any) -> bytes:
    """What a rank of sglang 0.5.23 puts."""
    body = {
        "attn_tp_size": 2, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0,
        "attn_dp_size": 1, "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0,
        "rank_ip": "127.0.0.1", "rank_port": 35051, "page_size": 1, "kv_cache_dtype": "auto", "kv_layout": None,
        "dsv41_spec_layout": None,
        "load_balance_method": "follow_bootstrap_room", "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False, "prefill_http_port": 30000, "decode_allocation_policy": "early",
    }  # fmt: skip
    return json.dumps({**body, **changes}).encode()


def route(dp: object, cp: object, tp: object, pp: object) -> str:
    return f"/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}"


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    status: int
    body: str
    kind: str = TEXT
    sent: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


SHAPE = (
    '{"attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "kv_cache_dtype": "auto", '
    '"follow_bootstrap_room": true, "enable_dsa_cache_layer_split": false, "decode_allocation_policy": "early", '
    '"enable_kv_cache_sharding": false, "prefill_http_port": 30000, "target_tp_rank": null, "target_tp_ranks": null, '
    '"target_cp_ranks": null, "target_pp_ranks": null, "required_dst_info_num": null, '
    '"required_prefill_response_num": null}'
)
CRASHED = "500 Internal Server Error\n\nServer got itself in trouble"
MISSING = "Missing inputs for bootstrap server."
NOT_YET = "Prefill server not fully registered yet ({} workers registered)."

# In this order, against one server: the life of a two-rank prefill, with everybody's mistakes in between.
STORY = [
    Exchange("GET", "/health", 200, "OK"),
    Exchange("HEAD", "/health", 200, ""),
    Exchange("POST", "/health", 405, "405: Method Not Allowed", headers={"Allow": "GET,HEAD"}),
    Exchange("GET", "/nothing", 404, "404: Not Found"),
    Exchange("GET", "/route/", 404, "404: Not Found"),
    Exchange("POST", "/route", 405, "Method not allowed", JSON),
    Exchange("DELETE", "/route", 405, "Method not allowed", JSON),
    Exchange("HEAD", "/route", 405, "", JSON),
    Exchange("GET", "/register_dp_rank", 405, "405: Method Not Allowed", headers={"Allow": "POST"}),
    Exchange("PUT", "/query_dp_ranks", 405, "405: Method Not Allowed", headers={"Allow": "POST"}),
    Exchange("GET", "/route", 400, MISSING),
    Exchange("GET", "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1", 400, MISSING),
    Exchange("GET", route("", 0, 0, 0), 400, MISSING),
    Exchange("GET", route(-1, -1, -1, -1), 503, NOT_YET.format(0)),
    Exchange("GET", route(0, 0, 0, 0), 503, NOT_YET.format(0)),
    Exchange("GET", route("x", 0, 0, 0), 500, CRASHED),
    Exchange("GET", route(0, "x", 0, 0), 503, NOT_YET.format(0)),
    Exchange("GET", route(-1, "x", 0, 0), 500, CRASHED),
    Exchange("PUT", "/route", 200, "OK", sent=row()),
    Exchange("GET", route(-1, -1, -1, -1), 503, NOT_YET.format(1)),
    Exchange("GET", route(0, 0, 0, 0), 503, NOT_YET.format(1)),
    Exchange(
        "PUT", "/route", 400, "Inconsistent prefill allocation policies",
        sent=row(decode_allocation_policy="prefill_complete"),
    ),
    Exchange(
        "PUT", "/route", 400, "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks",
        sent=row(dsv41_spec_layout={"a": 1}),
    ),
    Exchange("PUT", "/route", 200, "OK", sent=row(attn_tp_rank=1, rank_ip="10.0.0.7", rank_port="4242", surprise=[1])),
    Exchange("GET", route(-1, -1, -1, -1), 200, SHAPE, JSON),
    Exchange("GET", route(0, 0, 0, 0), 200, '{"rank_ip": "127.0.0.1", "rank_port": 35051}', JSON),
    Exchange("GET", route(0, 0, "%2B1", "%200"), 200, '{"rank_ip": "10.0.0.7", "rank_port": 4242}', JSON),
    Exchange("GET", route(0, 0, 2, 0), 404, "Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=2 pp_rank=0"),
    Exchange("GET", route(7, 0, "x", 0), 404, "Bootstrap info not found for dp_rank=7 cp_rank=0 tp_rank=x pp_rank=0"),
    Exchange("GET", route(0, 0, "x", 0), 500, CRASHED),
    Exchange("GET", route(0, 0, "1.0", 0), 500, CRASHED),
    Exchange("GET", route(0, 0, 0, "0&target_tp_rank=9"), 200, '{"rank_ip": "127.0.0.1", "rank_port": 35051}', JSON),
    Exchange("PUT", "/route", 200, "OK", sent=row(rank_port=1, kv_cache_dtype="fp8", page_size=64)),
    Exchange("GET", route(0, 0, 0, 0), 200, '{"rank_ip": "127.0.0.1", "rank_port": 1}', JSON),
    Exchange("GET", route(-1, -1, -1, -1), 200, SHAPE, JSON),
    Exchange("POST", "/query_dp_ranks", 200, "{}", JSON, b'{"bootstrap_rooms": [1, "2"]}'),
    Exchange("POST", "/register_dp_rank", 200, "OK", sent=b'{"bootstrap_room": "12", "dp_rank": 1}'),
    Exchange("POST", "/register_dp_rank", 200, "OK", sent=b'{"bootstrap_room": 9223372036854775807, "dp_rank": "3"}'),
    Exchange(
        "POST", "/query_dp_ranks", 200, '{"12": 1, "9223372036854775807": 3}', JSON,
        b'{"bootstrap_rooms": ["12", 13, 9223372036854775807]}',
    ),
]  # fmt: skip
# SGLang keeps aiohttp's limit of 1 MiB.
TOO_LARGE = Exchange("PUT", "/route", 413, f"Maximum request body size {64 << 10} exceeded.", sent=b" " * 70_000)


def call(port: int, exchange: Exchange) -> tuple[int, str, str, dict[str, str]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request(exchange.method, exchange.path, exchange.sent or None)
        answer = connection.getresponse()
        body = answer.read().decode()
        headers = {name.title(): value for name, value in answer.getheaders() if name.title() == "Allow"}
        return answer.status, body, answer.getheader("Content-Type", ""), headers
    finally:
        connection.close()


def test_the_story_is_told_as_sglang_tells_it() -> None:
    with bootstrap() as server:
        for exchange in (*STORY, TOO_LARGE):
            wanted = (exchange.status, exchange.body, exchange.kind, exchange.headers)
            assert call(server.port, exchange) == wanted, exchange.path


REAL = """
import sys
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer
CommonKVBootstrapServer("127.0.0.1", int(sys.argv[1]))
sys.stdin.read()
"""


@contextlib.contextmanager
def real_sglang(port: int) -> Iterator[None]:
    process = subprocess.Popen(
        [SGLANG, "-c", REAL, str(port)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, "the real server died"
            assert time.monotonic() < deadline, "the real server did not answer /health within 120 s"
            with contextlib.suppress(OSError):
                call(port, STORY[0])
                break
            time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.stdin.close()
        process.wait()


@pytest.mark.heavy
@pytest.mark.timeout(180)
@pytest.mark.skipif(not SGLANG, reason="PDCTL_TEST_SGLANG_PYTHON does not name a Python with sglang 0.5.23")
def test_the_real_server_tells_the_same_story() -> None:
    port = free_port()
    with real_sglang(port), bootstrap() as ours:
        for exchange in STORY:
            assert call(port, exchange) == call(ours.port, exchange), exchange.path


# --- where we differ on purpose


@for_each(
    ("path", "body", "text"),
    [
        ("/route", b"", "the body is not JSON"),
        ("/route", b"{", "the body is not JSON"),
        ("/route", b"\xff\xfe", "the body is not JSON"),
        ("/route", b'{"surprise": ' + b"[" * 100_000, "the body is not JSON"),
        ("/route", b"[]", "Expected `object`, got `array`"),
        ("/route", b"{}", "missing required field `attn_tp_size`"),
        ("/route", row(rank_port="http"), "`$.rank_port`"),
        ("/route", row(rank_port=None), "`$.rank_port`"),
        ("/route", row(attn_tp_size=0), "`$.attn_tp_size`"),
        ("/route", row(attn_tp_size="2"), "`$.attn_tp_size`"),
        ("/route", row(attn_dp_rank=-1), "`$.attn_dp_rank`"),
        ("/route", row(pp_size=10**30), "`$.pp_size`"),
        ("/route", row(rank_ip=7), "`$.rank_ip`"),
        ("/route", row(kv_cache_dtype={}), "`$.kv_cache_dtype`"),
        ("/register_dp_rank", b'{"bootstrap_room": "one", "dp_rank": 0}', "`$.bootstrap_room`"),
        ("/register_dp_rank", b'{"bootstrap_room": 1}', "missing required field `dp_rank`"),
        ("/query_dp_ranks", b'{"bootstrap_rooms": 1}', "`$.bootstrap_rooms`"),
        ("/query_dp_ranks", b'{"bootstrap_rooms": [null]}', "`$.bootstrap_rooms[0]`"),
    ],
)
def test_a_body_that_cannot_be_taken_names_the_field(path: str, body: bytes, text: str) -> None:
    """There: HTTP 500 and a traceback in the log."""
    table = RankTable()
    method = {"/route": table.put, "/register_dp_rank": table.register_dp_rank, "/query_dp_ranks": table.query_dp_ranks}
    answer = method[path](body)
    assert answer.status == 400
    assert text in answer.body.decode()
    assert table.registered == (0, 0)


def test_a_rank_that_registers_twice_is_counted_once() -> None:
    """There the count goes up, so that a restarted rank can make an incomplete instance look complete."""
    table = RankTable()
    for port in (1, 2, 3):
        assert table.put(row(rank_port=port)).status == 200
    assert table.registered == (1, 2)
    assert table.get(dict.fromkeys(PARAMETERS, "0")).status == 503
    table.put(row(attn_tp_rank=1))
    assert table.registered == (2, 2)


# --- the rest of the contract


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attn_tp_size": 1}, (1, 1)),
        ({"attn_tp_size": 4, "pp_size": 2, "attn_dp_size": 8}, (1, 64)),
        ({"attn_tp_size": 1, "system_dp_size": 3, "system_dp_rank": 2}, (1, 3)),
        ({"attn_tp_size": 1, "attn_cp_size": 2}, (1, 2)),
    ],
)
def test_the_first_row_says_how_many_ranks_must_come(changes: dict[str, int], expected: tuple[int, int]) -> None:
    table = RankTable()
    table.put(row(**changes))
    assert table.registered == expected


def test_plain_replicas_are_found_by_their_replica_index() -> None:
    table = RankTable()
    for rank in (0, 1):
        table.put(row(attn_tp_size=1, system_dp_size=2, system_dp_rank=rank, rank_port=100 + rank))
    query = dict.fromkeys(PARAMETERS, "0")
    assert json.loads(table.get({**query, "prefill_dp_rank": "1"}).body) == {"rank_ip": "127.0.0.1", "rank_port": 101}


def test_layout_keys_show_only_when_a_rank_gave_them() -> None:
    table = RankTable()
    table.put(row(attn_tp_size=1, kv_layout="mla", dsv41_spec_layout={"draft": 1}, load_balance_method=None))
    given = json.loads(table.get(dict.fromkeys(PARAMETERS, "-1")).body)
    assert given["kv_layout"] == "mla"
    assert given["dsv41_spec_layout"] == {"draft": 1}
    assert given["follow_bootstrap_room"] is False


def test_announced_dp_ranks_are_forgotten_after_a_while() -> None:
    table = RankTable()
    table.register_dp_rank(b'{"bootstrap_room": 5, "dp_rank": 1}')
    assert table.drop_rooms_older_than(60) == 0
    assert table.drop_rooms_older_than(-1) == 1
    assert table.query_dp_ranks(b'{"bootstrap_rooms": [5]}').body == b"{}"


def test_a_taken_port_is_an_error_that_names_the_port_and_the_fix() -> None:
    async def start(port: int) -> None:
        await BootstrapServer(HOST, port).start()

    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError) as caught:
            asyncio.run(start(port))
    assert f"bootstrap server cannot listen on {HOST}:{port}" in caught.value.message
    assert f"another process holds port {port}" in caught.value.fix
    assert "--disaggregation-bootstrap-port" in caught.value.fix


def test_a_host_that_is_not_ours_is_an_error_too() -> None:
    with pytest.raises(LaunchError, match=r"cannot listen on 192\.0\.2\.1:"):
        asyncio.run(BootstrapServer("192.0.2.1", free_port()).start())


@pytest.mark.parametrize(
    ("sent", "first_line"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (b"GET /health FTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n", b"HTTP/1.1 400 "),
        (b"PUT /route HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"PUT /route HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{}", b""),
    ],
)
def test_bytes_that_are_no_request_cost_one_connection(sent: bytes, first_line: bytes) -> None:
    with bootstrap() as server:
        with socket.create_connection((HOST, server.port), timeout=10) as client:
            answer, reset = b"", False
            try:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                while data := client.recv(4096):
                    answer += data
            except OSError:
                reset = True  # it was answered, and closed, before all was read: an answer may be lost by that
        assert answer.startswith(first_line) or (reset and len(sent) > 65_536) if first_line else b"200" not in answer
        assert call(server.port, STORY[0])[0] == 200


def test_one_connection_serves_many_requests_and_a_large_upload_that_asks_first() -> None:
    with bootstrap() as server, socket.create_connection((HOST, server.port), timeout=10) as client:
        answers = client.makefile("rb")
        for _ in range(3):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            head = b"".join(iter(answers.readline, b"\r\n"))
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert answers.read(2) == b"OK"
        client.sendall(b"PUT /route HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        client.sendall(b"{}")
        assert answers.readline().startswith(b"HTTP/1.1 400")
        answers.close()


PUT = b"PUT /route HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"


def test_a_declared_size_is_refused_before_the_body_comes_and_buys_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BootstrapProtocol, "patience", 0.2)
    with bootstrap() as server, socket.create_connection((HOST, server.port), timeout=20) as client:
        client.sendall(PUT % 600_000_000)
        answer = b"".join(iter(lambda: _received(client), b""))  # and the end of the connection
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(TOO_LARGE.body.encode())


def test_a_length_may_have_thousands_of_leading_zeros(caplog: pytest.LogCaptureFixture) -> None:
    with bootstrap() as server, socket.create_connection((HOST, server.port), timeout=20) as client:
        client.sendall(b"PUT /route HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"0" * 5000 + b"2\r\n\r\n{}")
        assert _received(client).startswith(b"HTTP/1.1 400 ")
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(65536)
    except ConnectionResetError:
        return b""


def test_half_sent_requests_keep_nobody_of_their_address_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BootstrapProtocol, "of_one_peer", 4)
    with bootstrap() as server, contextlib.ExitStack() as slow:
        for size in (100, 100, 60_000, 60_000, 600_000_000, 600_000_000):
            client = slow.enter_context(socket.create_connection((HOST, server.port), timeout=10))
            client.sendall(PUT % size + b"{")
        for _ in range(3):
            assert call(server.port, STORY[0])[0] == 200


def test_stopping_with_half_sent_requests_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as slow, bootstrap() as server:
        for size in (100, 600_000_000):
            client = slow.enter_context(socket.create_connection((HOST, server.port), timeout=10))
            client.sendall(PUT % size + b"{")
        assert call(server.port, STORY[0])[0] == 200
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


def test_stopping_ends_idle_connections_and_frees_the_port() -> None:
    with bootstrap() as server:
        port = server.port
        idle = http.client.HTTPConnection(HOST, port, timeout=10)
        idle.request("GET", "/health")
        assert idle.getresponse().read() == b"OK"
    assert idle.sock.recv(10) == b""
    idle.close()
    with bootstrap(port) as again:
        assert call(again.port, STORY[0])[0] == 200


def test_a_request_of_two_lengths_is_refused_and_nothing_after_it_is_read() -> None:
    sent = b"PUT /x HTTP/1.1\r\nhost: x\r\ncontent-length: 60\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    with bootstrap() as server, socket.create_connection((HOST, server.port), 10) as connection:
        connection.sendall(sent + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
