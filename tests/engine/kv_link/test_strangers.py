"""What anybody who reaches a rank's port can send: it is refused, the thread goes on, and rooms of others with it."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pdctl.engine.kv_link.kv_frames import RegisterAck, RegisterKvArgs, Unregister, codec
from pdctl.engine.prefill.decode_sessions import MAX_SESSIONS
from pdctl.engine.transfer.nixl import AgentDescriptor
from tests.cases import for_each
from tests.engine.kv_link.impostor import REGISTER, Impostor, dialled
from tests.engine.kv_link.rig import HOST, bootstrap, decode_side, geometry, prefill_side
from tests.engine.kv_link.rooms import lives, run_room

UTF8 = codec.encode(Unregister("sss")).replace(b"sss", b"\xff\xfe\xfd")


def test_a_frame_that_is_no_utf8_costs_its_sender_the_frame_and_nobody_anything() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for side in (prefill, decode):
            with dialled(side.manager.endpoint) as push:
                push.send(UTF8)
            side.woken.wait("rejected frame", lambda s=side: s.manager.stats().rejected_frames == 1)  # type: ignore[misc]
        lives(prefill, decode, server.port)


def nixl_descriptor(real: bytes, **change: object) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(real), **change})


FORGED: dict[str, dict[str, object]] = {
    "kind": {"kind": "x"},
    "address -1": {"address": -1},
    "address 2^63": {"address": 2**63},
    "address elsewhere": {"address": 4096},
    "larger than it is": {"nbytes": 1 << 40},
    "device -1": {"device": -1},
    "another agent": {"agent": "pdctl-0123456789abcdef"},
    "no metadata": {"metadata": b""},
    "other metadata": {"metadata": b"\xff" * 300},
}


@for_each("name", FORGED)
def test_a_forged_nixl_descriptor_is_refused_and_leaves_nothing_behind(name: str) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, backend="nixl") as prefill,
        decode_side(backend="nixl") as decode,
        Impostor(prefill.manager.endpoint) as liar,
    ):
        forged = nixl_descriptor(decode.manager.transport.descriptor(), **FORGED[name])
        answer = liar.register(forged, "nixl")
        assert not answer.accepted
        assert "nixl" in answer.reason
        assert prefill.manager.stats().peers == 0
        lives(prefill, decode, server.port)


def test_an_shm_handle_names_no_file(tmp_path: Path) -> None:
    """The pool's pages would be written over it."""
    victim = tmp_path / "keys"
    content = os.urandom(geometry().nbytes)
    victim.write_bytes(content)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        own = msgspec.msgpack.decode(decode.manager.transport.descriptor())
        with victim.open("r+b") as opened:
            for change in (
                {"name": str(victim), "inode": victim.stat().st_ino},
                {"fd": opened.fileno(), "inode": victim.stat().st_ino},
                {"token": f"../..{victim}", "fd": opened.fileno(), "inode": victim.stat().st_ino},
                {"fd": -1}, {"fd": 0}, {"pid": -1}, {"pid": 1}, {"token": "0" * 20}, {"token": ""}, {"inode": 7},
                {"nbytes": 1 << 50}, {"nbytes": -1},
            ):  # fmt: skip
                with Impostor(prefill.manager.endpoint) as liar:
                    assert not liar.register(msgspec.msgpack.encode({**own, **change})).accepted, change
        assert victim.read_bytes() == content
        lives(prefill, decode, server.port)


@contextlib.contextmanager
def listening(ports: int = 1) -> Iterator[tuple[zmq.Socket[bytes], list[str]]]:
    """A decode's socket under several endpoints."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        yield pull, [f"tcp://{HOST}:{pull.bind_to_random_port(f'tcp://{HOST}')}" for _ in range(ports)]


def registration(endpoint: str, descriptor: bytes) -> RegisterKvArgs:
    return msgspec.structs.replace(
        REGISTER, session=uuid.uuid4().hex, endpoint=endpoint, descriptor=descriptor, backend="shm"
    )


def accepted(pull: zmq.Socket[bytes]) -> bool:
    assert pull.poll(10_000), "no answer within 10 s"
    answer = codec.decode(pull.recv())
    assert isinstance(answer, RegisterAck)
    return answer.accepted


MORE = MAX_SESSIONS + 200  # registrations than are kept


def test_more_registrations_than_are_kept_come_and_stay_away_without_a_word() -> None:
    """Nobody gives its own up: the oldest idle one leaves for the next."""
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        run_room(prefill, decode, 7, server.port)
        descriptor = decode.manager.transport.descriptor()
        before = len(os.listdir("/proc/self/fd"))
        with listening(40) as (pull, endpoints), dialled(prefill.manager.endpoint) as push:
            for number in range(MORE):
                push.send(codec.encode(registration(endpoints[number % 40], descriptor)))
                assert accepted(pull)
            assert MAX_SESSIONS / 2 < prefill.manager.stats().peers <= MAX_SESSIONS
            lives(prefill, decode, server.port)
        prefill.woken.wait("sessions gone", lambda: prefill.manager.stats().peers <= 1)
        prefill.woken.wait("few descriptors", lambda: len(os.listdir("/proc/self/fd")) <= before + 50)


def test_more_registrations_than_are_kept_come_and_go() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        descriptor = decode.manager.transport.descriptor()
        with listening() as (pull, endpoints), dialled(prefill.manager.endpoint) as push:
            for _ in range(MORE):
                asked = registration(endpoints[0], descriptor)
                push.send(codec.encode(asked))
                assert accepted(pull)
                push.send(codec.encode(Unregister(asked.session)))
            lives(prefill, decode, server.port)
        prefill.woken.wait("sessions gone", lambda: prefill.manager.stats().peers <= 1)


def test_a_thousand_bad_registrations_poison_nothing() -> None:
    """Each from an endpoint where nobody listens, each with something else that is wrong."""
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        before = len(os.listdir("/proc/self/fd"))
        with dialled(prefill.manager.endpoint) as push:
            for number in range(1000):
                bad = registration(f"tcp://127.0.0.{2 + number % 250}:{1 + number}", bytes(number % 64))
                push.send(codec.encode(bad))
            lives(prefill, decode, server.port)
        prefill.woken.wait("few descriptors", lambda: len(os.listdir("/proc/self/fd")) < before + 80)
        assert prefill.manager.stats().peers <= 1


def own_listeners() -> set[int]:
    """The TCP ports on which this process listens."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(link) for link in links if link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def test_whoever_connects_to_ucxs_port_and_leaves_costs_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX accepts on a thread of its own, and sees that a connection has ended only when somebody lends it one."""
    pytest.importorskip("nixl_cu12")
    monkeypatch.setenv("UCX_TLS", "all")  # as between hosts
    with bootstrap() as server:
        others = own_listeners()
        with prefill_side(server.port, backend="nixl") as prefill, decode_side(backend="nixl") as decode:
            ours = {zmq_port(side.manager.endpoint) for side in (prefill, decode)}
            ports, before = own_listeners() - others - ours, len(os.listdir("/proc/self/fd"))
            assert len(ports) == 3, "two lanes of the prefill and one of the decode"
            for port in ports:
                for _ in range(500):  # UCX ends 16 in a turn
                    socket.create_connection((HOST, port), 10.0).close()
            prefill.woken.wait("few descriptors", lambda: len(os.listdir("/proc/self/fd")) <= before + 10)
            lives(prefill, decode, server.port)


def zmq_port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def test_the_descriptor_of_a_pool_is_what_is_sent() -> None:
    assert set(AgentDescriptor.__struct_fields__) == {"agent", "metadata", "address", "nbytes", "device", "kind"}
