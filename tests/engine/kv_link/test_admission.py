"""Whose ranks a bootstrap server believes: with a deployment secret, and without one as SGLang's protocol allows."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pdctl.deployment_secret import DeploymentSecret
from pdctl.engine.config.process_log import BURST
from pdctl.engine.prefill.bootstrap_server import BootstrapProtocol, BootstrapServer
from pdctl.engine.prefill.rank_table import MAX_ROOMS, BootstrapRequest, RankTable, RegistrationCheck
from pdctl.http_auth import sign
from pdctl.layout.shape import Shape
from tests.cases import for_each
from tests.engine.kv_link.rig import HOST, bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = DeploymentSecret.mint()
ROW: Mapping[str, Any] = {
    "attn_tp_size": 2, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1, "attn_dp_rank": 0,
    "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": "10.0.0.7", "rank_port": 4242,
    "page_size": 16, "kv_cache_dtype": "auto",
}  # fmt: skip


def put(peer: str = "10.0.0.7", own: str = "10.0.0.1", signature: str = "", **row: Any) -> BootstrapRequest:
    return BootstrapRequest("PUT", "/route", {}, json.dumps({**ROW, **row}).encode(), "/route", signature, peer, own)


def signed(request: BootstrapRequest, secret: DeploymentSecret = SECRET, now: float | None = None) -> BootstrapRequest:
    signature = sign(secret, request.method, request.target, request.body, now)
    return BootstrapRequest(
        request.method, request.path, {}, request.body, request.target, signature, request.peer, request.own
    )


def server(secret: DeploymentSecret | None = None) -> BootstrapServer:
    return BootstrapServer(HOST, 0, RegistrationCheck(Shape(tp=2), secret))


@for_each(
    ("peer", "own", "row", "taken"),
    [
        ("10.0.0.7", "10.0.0.1", {}, True),  # a rank on another node registers the address it calls from
        ("127.0.0.1", "127.0.0.1", {}, True),  # a rank of this machine, by its outside address
        ("10.0.0.1", "10.0.0.1", {}, True),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.1", {}, True),
        ("10.9.9.9", "10.0.0.1", {}, False),  # somebody else's address
        ("10.9.9.9", "10.0.0.1", {"rank_ip": "10.0.0.1"}, False),
        ("127.0.0.1", "127.0.0.1", {"rank_ip": "metadata.internal"}, False),  # decodes would look the name up
        ("127.0.0.1", "127.0.0.1", {"rank_ip": ""}, False),
        ("127.0.0.1", "127.0.0.1", {"attn_tp_size": 4}, False),  # not this instance's shape
        ("127.0.0.1", "127.0.0.1", {"attn_tp_rank": 2}, False),
        ("127.0.0.1", "127.0.0.1", {"pp_size": 1 << 20}, False),
    ],
)
def test_without_a_secret_a_rank_registers_itself(peer: str, own: str, row: dict[str, Any], taken: bool) -> None:
    one = server()
    answer = one.answer(put(peer=peer, own=own, **row))
    assert (answer.status == 200) is taken, answer.body
    assert one.registered[0] == int(taken)


def test_with_a_secret_only_signed_registrations_count() -> None:
    one = server(SECRET)
    for refused in (
        put(),
        put(peer="127.0.0.1", own="127.0.0.1"),
        signed(put(), DeploymentSecret.mint()),
        signed(put(), now=1.0),
        put(signature=sign(SECRET, "PUT", "/route", b"{}")),
        put(signature="1 2 3"),
        put(signature="\x00" * 300),
    ):
        assert one.answer(refused).status == 401
    assert one.registered == (0, 0)
    taken = signed(put(peer="10.9.9.9"))  # behind NAT
    assert one.answer(taken).status == 200
    replayed = one.answer(taken)
    assert (replayed.status, replayed.body) == (401, b"it was sent before")
    announce = BootstrapRequest(
        "POST", "/register_dp_rank", {}, b'{"bootstrap_room": 1, "dp_rank": 0}', "/register_dp_rank"
    )
    assert one.answer(announce).status == 401
    assert one.answer(signed(announce)).status == 200


def test_only_hosts_with_ranks_announce_dp_ranks() -> None:
    one = server()
    assert one.answer(put()).status == 200

    def announce(peer: str) -> int:
        body = b'{"bootstrap_room": 1, "dp_rank": 0}'
        return one.answer(BootstrapRequest("POST", "/register_dp_rank", {}, body, peer=peer, own="10.0.0.1")).status

    assert [announce(peer) for peer in ("10.0.0.7", "127.0.0.1", "10.9.9.9")] == [200, 200, 403]


def test_strangers_cannot_make_the_tables_grow() -> None:
    table = RankTable()
    for index in range(3000):  # without a shape of its own: the first row decides, as in sglang
        table.put(json.dumps({**ROW, "attn_tp_rank": index, "kv_cache_dtype": "x" * 200}).encode())
    assert table.registered == (2, 2)
    assert table.put(json.dumps({**ROW, "kv_cache_dtype": "x" * 300}).encode()).status == 400
    for room in range(MAX_ROOMS + 10):
        table.register_dp_rank(b'{"bootstrap_room": %d, "dp_rank": 0}' % room)
    assert len(table._rooms) == MAX_ROOMS
    assert 9 not in table._rooms
    assert MAX_ROOMS + 9 in table._rooms


def test_one_peer_holds_a_bounded_number_of_connections() -> None:
    """One more, and one that says nothing makes place for it."""
    most = BootstrapProtocol.of_one_peer
    with bootstrap() as running, contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection((HOST, running.port), timeout=10)) for _ in range(most + 1)
        ]
        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert held[-1].recv(100).startswith(b"HTTP/1.1 200")
        closed, _, _ = select.select(held[:-1], [], [], 10)
        assert len(closed) == 1, "one connection was closed for it"
    assert not BootstrapProtocol.held or sum(BootstrapProtocol.held.values()) <= most


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address")
@for_each("sent", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"PUT /route HTTP/1.1\r\n"])
def test_strangers_of_many_addresses_do_not_keep_a_decode_out(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """A decode that cannot ask a prefill's bootstrap server takes that prefill for dead."""
    monkeypatch.setattr(BootstrapProtocol, "most", 8)
    monkeypatch.setattr(BootstrapProtocol, "of_one_peer", 2)
    with bootstrap() as running, contextlib.ExitStack() as stack:
        for number in range(10):
            stranger = socket.socket()
            stack.enter_context(stranger)
            stranger.bind((f"127.0.0.{2 + number // 2}", 0))
            stranger.connect((HOST, running.port))
            stranger.sendall(sent)
            if sent.endswith(b"\r\n\r\n"):
                assert stranger.recv(100).startswith(b"HTTP/1.1 200")
        for _ in range(3):
            with socket.create_connection((HOST, running.port), timeout=10) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_strangers_that_are_refused_again_and_again_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = BootstrapServer("10.0.0.1", 0, RegistrationCheck(None, SECRET))
    for _ in range(1000):
        assert server.answer(put()).status == 401
    lines = [one for one in caplog.messages if one.startswith("Refused PUT /route from 10.0.0.7")]
    assert 0 < len(lines) <= BURST + 5


def test_a_signature_of_any_bytes_is_answered() -> None:
    sent = b"PUT /route HTTP/1.1\r\nHost: a\r\nx-pdctl-signature: \xff\xfe\r\nContent-Length: 2\r\n\r\n{}"
    with bootstrap() as running, socket.create_connection((HOST, running.port), timeout=10) as client:
        client.sendall(sent)
        assert client.recv(100).startswith(b"HTTP/1.1 400")
