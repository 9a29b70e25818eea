"""Peers of another version of the handshake: refused at once, with both versions, on both sides."""

from __future__ import annotations

import msgspec
import pytest

from pdctl.engine.decode import rank_connection
from pdctl.engine.ipc.messages import HEADER
from pdctl.engine.kv_link import kv_frames
from pdctl.engine.kv_link.kv_frames import PROTOCOL, RegisterAck, codec
from pdctl.engine.kv_link.room_state import FailureCode
from tests.engine.kv_link.impostor import REGISTER, Impostor
from tests.engine.kv_link.rig import HOST, bootstrap, decode_side, prefill_side
from tests.engine.kv_link.rooms import failed, run_room

BOTH = f"KV handshake version mismatch: prefill={PROTOCOL}, decode={PROTOCOL + 1}."


def test_a_decode_of_another_version_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kv_frames.RegisterKvArgs

    def newer(**fields: object) -> kv_frames.RegisterKvArgs:
        return made(**fields, protocol=PROTOCOL + 1)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_connection, "RegisterKvArgs", newer)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        receiver = decode.manager.receiver(1, "r", HOST, server.port)  # type: ignore[union-attr]
        failed(decode, receiver, FailureCode.MISMATCH, BOTH)
        assert prefill.manager.stats().peers == 0


@pytest.mark.parametrize("format_byte", [codec.encode(REGISTER)[2], 9])
def test_a_registration_nobody_here_can_read_is_answered_all_the_same(format_byte: int) -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, Impostor(prefill.manager.endpoint) as newer:
        fields = {"type": "register", "session": newer.session, "endpoint": newer.endpoint, "protocol": PROTOCOL + 1}
        header = bytearray(codec.encode(REGISTER)[:HEADER])
        header[2] = format_byte
        newer._push.send(bytes(header) + msgspec.msgpack.encode({**fields, "pools": ["of", "another", "shape"]}))
        answer = newer.receive()
        assert isinstance(answer, RegisterAck)
        assert (answer.accepted, answer.code) == (False, "mismatch")
        assert answer.reason.startswith(BOTH)
        with decode_side() as decode:
            run_room(prefill, decode, 1, server.port)
