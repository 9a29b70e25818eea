"""A deployment secret between ranks: with it rooms go through, without it nothing does, and both sides say so."""

from __future__ import annotations

import contextlib
import logging
import socket
import time

import pytest
import zmq

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.engine.ipc.channels import SocketKeys
from pdctl.engine.kv_link import kv_frames
from pdctl.engine.kv_link.kv_frames import Inbox, Link, codec
from pdctl.engine.kv_link.room_state import KVPoll
from tests.cases import for_each
from tests.engine.kv_link.impostor import FRAMES, dialled
from tests.engine.kv_link.rig import bootstrap, decode_side, prefill_side
from tests.engine.kv_link.rooms import run_room

ONE, OTHER = DeploymentSecret(b"1" * 32), DeploymentSecret(b"2" * 32)


def test_ranks_of_one_deployment_hand_rooms_over() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, secret=ONE) as prefill,
        decode_side(secret=ONE) as decode,
    ):
        for room in (1, 2):
            run_room(prefill, decode, room, server.port)


@pytest.mark.parametrize(("far", "near"), [(ONE, None), (None, ONE), (ONE, OTHER)], ids=["prefill", "decode", "two"])
def test_ranks_of_two_deployments_say_at_once_what_differs(
    far: DeploymentSecret | None, near: DeploymentSecret | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    with (
        bootstrap() as server,
        prefill_side(server.port, secret=far) as prefill,
        decode_side(secret=near) as decode,
    ):
        receiver = decode.manager.receiver(1, "rid", "127.0.0.1", server.port)  # type: ignore[union-attr]
        decode.until(receiver, KVPoll.FAILED)
        assert receiver.failure is not None
        assert receiver.failure.code == "mismatch", "a registration that nobody answers ends otherwise, and later"
        assert ENV in receiver.failure.message
        prefill.woken.wait("line in the prefill's log", lambda: "Turned away" in caplog.text)


def test_a_connection_that_never_greets_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a file descriptor, which the next decode may need."""
    monkeypatch.setattr(kv_frames, "GREETING_WITHIN", 200)
    with bootstrap() as server, prefill_side(server.port, secret=ONE) as prefill:
        host, _, port = prefill.manager.endpoint.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as silent:
            while silent.recv(4096):  # the rank's own greeting; libzmq alone would leave it open for 30 s
                pass


def test_strangers_are_turned_away_before_a_byte_of_theirs_is_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    with bootstrap() as server, prefill_side(server.port, secret=ONE) as prefill, decode_side(secret=ONE) as decode:
        for side in (prefill, decode):
            with dialled(side.manager.endpoint) as push:
                with contextlib.suppress(zmq.Again):  # turned away before the last of them
                    for frame in FRAMES:
                        push.send(codec.encode(frame), zmq.DONTWAIT)
                side.woken.wait("line", lambda s=side: f"at {s.manager.endpoint}" in caplog.text)  # type: ignore[misc]
            assert side.manager.stats().rejected_frames == 0
            assert side.manager.stats().peers == 0
        run_room(prefill, decode, 1, server.port)
    assert ENV in caplog.text
    assert caplog.text.count("Turned away") < 5, "at a bounded rate"


@pytest.mark.parametrize("keys", [None, SocketKeys.of(ONE)], ids=["open", "keys"])
@for_each("said", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" + bytes(100), b"a" * 4096])
def test_every_stranger_is_counted_and_no_peer(keys: SocketKeys | None, said: bytes) -> None:
    with zmq.Context() as context:
        inbox = Inbox(context, "127.0.0.1", keys)
        peer = Link(context, inbox.endpoint, keys)
        assert peer.send(b"frame")
        assert inbox.socket.poll(10_000), "no frame of the peer came within 10 s"
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", inbox.port)) as stranger:
                stranger.sendall(said)
        peer.close()
        counted, deadline = 0, time.monotonic() + 10.0
        while counted < 5 and time.monotonic() < deadline:
            inbox.monitor.poll(100)
            counted += inbox.turned_away()
        while inbox.monitor.poll(200):  # the end of the peer, if it comes last
            counted += inbox.turned_away()
        inbox.close()
    assert counted == 5


def test_the_death_of_the_managers_thread_is_told_before_anything_else() -> None:
    told: list[str] = []
    with bootstrap() as server, prefill_side(server.port) as prefill:
        prefill.manager._died = told.append  # type: ignore[method-assign]
        prefill.manager.loop.call(lambda: [][0])
        prefill.woken.wait("word of the death", lambda: told)
        assert "KV manager thread ended on IndexError" in told[0]


HOSTS = ("a" * 70, "..", "xn--", "\u00e9" * 80, "[::1", "\ud83d\ude00.example")  # the last: no id of a test may hold it


@pytest.mark.parametrize("host", HOSTS, ids=ascii)
def test_a_bootstrap_host_that_is_no_name_fails_its_room_alone(host: str) -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side(topology_timeout=0.1) as decode:
        receiver = decode.manager.receiver(9, "rid", host, 8998)  # type: ignore[union-attr]
        decode.until(receiver, KVPoll.FAILED)
        assert not decode.manager.ended
        run_room(prefill, decode, 1, server.port)
