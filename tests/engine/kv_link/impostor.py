"""Frames as a peer sends them, and a peer that is none."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import msgspec
import zmq

from pdctl.engine.kv_link.kv_frames import (
    Abort,
    AbortAck,
    Frame,
    RegisterAck,
    RegisterKvArgs,
    Status,
    TransferInfo,
    Unregister,
    codec,
    pack_pages,
)
from pdctl.engine.kv_link.kv_manager import shape_of
from pdctl.engine.kv_link.room_state import KVPoll
from tests.engine.kv_link.rig import DECODE, HOST, geometry, pages

ENDPOINT = f"tcp://{HOST}:9"
SHAPE = shape_of(DECODE, geometry())
REGISTER = RegisterKvArgs("s", ENDPOINT, "host", "shm", b"\x00" * 40, geometry(), SHAPE)


FRAMES: list[Frame] = [
    REGISTER,
    RegisterAck("s", ENDPOINT, "host", False, "because"),
    TransferInfo(2**63 - 1, "s", ENDPOINT, 7, pack_pages(pages(1, 2, 3))),
    Status(5, "s", 7, KVPoll.SUCCESS, 0, metadata=b"\x00\xff"),
    Abort(5, "s", ENDPOINT, 7, "because"),
    AbortAck(5, "s", 7, 1),
    Unregister("s"),
]


@contextlib.contextmanager
def dialled(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.setsockopt(zmq.LINGER, 1000)
        push.connect(endpoint)
        yield push


class Impostor:
    """A decode rank played by hand: registers with a prefill and reads the answers."""

    def __init__(self, prefill_endpoint: str) -> None:
        self.session = uuid.uuid4().hex
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = self._context.socket(zmq.PULL)
        self.endpoint = f"tcp://{HOST}:{self._pull.bind_to_random_port(f'tcp://{HOST}')}"
        self._push.connect(prefill_endpoint)

    def send(self, frame: Frame) -> None:
        self._push.send(codec.encode(frame))

    def receive(self) -> Frame:
        assert self._pull.poll(5000), "no answer within 5 s"
        return codec.decode(self._pull.recv())

    def register(self, descriptor: bytes, backend: str = "shm") -> RegisterAck:
        """With a pool shaped like `geometry()`."""
        asked = msgspec.structs.replace(REGISTER, session=self.session, endpoint=self.endpoint, backend=backend)
        self.send(msgspec.structs.replace(asked, descriptor=descriptor))
        answer = self.receive()
        assert isinstance(answer, RegisterAck)
        return answer

    def info(self, room: int, data: bytes, generation: int = 1) -> TransferInfo:
        return TransferInfo(room, self.session, self.endpoint, generation, data)

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self._push.close(0)
        self._pull.close(0)
        self._context.term()
