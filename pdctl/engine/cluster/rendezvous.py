"""How the ranks of several nodes find each other: each tells node 0 where it listens, and gets the answers of all.

This is sglang's worker-port handshake, on the same port of the plan (D + 13, 0.5.8 and later), except that in sglang
node 0 picks the ports.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec
import zmq
from msgspec import Meta

from pdctl.engine.config.process_log import LogRate
from pdctl.engine.ipc.channels import NOT_ALIKE, Line
from pdctl.engine.ipc.messages import Codec, FrameError
from pdctl.errors import NotReadyError

if TYPE_CHECKING:
    import asyncio

    from pdctl.engine.ipc.channels import SocketKeys

    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")


MOST_WAITING = 4  # peers for each rank: it, the DP controller, and restarted processes
PATIENCE = 30.0  # seconds after the deadline: node 0, which knows who is missing, fails first


Address = Annotated[str, Meta(max_length=300)]


class Here(msgspec.Struct, frozen=True, tag="here"):
    """A rank and its sockets. The DP controller, which only needs the answer, has world rank -1."""

    world_rank: Annotated[int, Meta(ge=-1, lt=1 << 20)]
    node: Annotated[int, Meta(ge=0, lt=1 << 20)] = 0
    step: Address = ""
    input: Address = ""
    wake: Address = ""


class Everybody(msgspec.Struct, frozen=True, tag="everybody"):
    ranks: list[Here]


Word = Here | Everybody

codec: Codec[Word] = Codec("rank meeting", 5, (Here, Everybody), max_bytes=1 << 20)


class Meeting:
    """Node 0's side, on its event loop: answers no one until all `expected` ranks have joined.

    The first process that claims a rank has it. `keys`: peers without them cannot connect.
    """

    def __init__(self, address: str, expected: int, keys: SocketKeys | None = None) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, codec.max_bytes)
        if keys is not None:
            keys.listen(self._socket)
        self._socket.bind(address)
        self._expected = expected
        self._rate = LogRate(log)
        self._waiting: list[bytes] = []
        self.ranks: dict[int, Here] = {}

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._drain)
        self._drain()

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._context.destroy(linger=0)

    def _drain(self) -> None:
        while True:
            try:
                name, *frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self.take(name, frames)

    def take(self, name: bytes, frames: list[bytes]) -> None:
        """Handle one message of the peer that ZMQ calls `name`."""
        try:
            word = codec.decode(frames[-1] if frames else b"")
        except FrameError as error:
            self._rate.warning("Dropping malformed frame: %s", error)
            return
        if isinstance(word, Here):
            self._take(name, word)

    def _take(self, name: bytes, here: Here) -> None:
        if here.world_rank >= self._expected or len(self._waiting) >= MOST_WAITING * self._expected:
            self._rate.warning("Ignoring rank %d at the meeting of %d ranks", here.world_rank, self._expected)
            return
        if here.world_rank >= 0 and self.ranks.setdefault(here.world_rank, here) != here:
            self._rate.warning("Another process says that it is rank %d; the first one counts", here.world_rank)
            return
        self._waiting.append(name)
        if len(self.ranks) < self._expected:
            return
        everybody = codec.encode(Everybody([self.ranks[rank] for rank in sorted(self.ranks)]))
        for waiting in self._waiting:
            self._socket.send_multipart([waiting, b"", everybody])
        self._waiting = []


def meet(address: str, here: Here, seconds: float, keys: SocketKeys | None = None) -> dict[int, Line]:
    """Return all sockets by world rank. Raise NotReadyError naming where it waited, `PATIENCE` after the deadline."""
    seconds += PATIENCE
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
        socket.setsockopt(zmq.MAXMSGSIZE, codec.max_bytes)
        if keys is not None:
            keys.dial(socket)
        failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        monitor = socket.get_monitor_socket(failed)
        socket.connect(address)
        socket.send(codec.encode(here))
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        strange = monitor in dict(poller.poll(int(seconds * 1000)))
        socket.disable_monitor()
        monitor.close(linger=0)
        if strange:
            raise NotReadyError(f"the ZMQ handshake with node 0 at {address} failed", NOT_ALIKE)
        try:
            word = codec.decode(socket.recv(zmq.DONTWAIT))
        except FrameError as error:
            raise NotReadyError(f"{address} answered something else than a meeting: {error}") from None
        except zmq.Again:
            raise NotReadyError(
                f"waited {seconds:g} s at {address} for node 0 to name every rank: "
                "a node was not started, or was given another --dist-init-addr"
            ) from None
    if not isinstance(word, Everybody):
        raise NotReadyError(f"{address} answered with {type(word).__name__}: another engine listens there")
    return {rank.world_rank: Line(rank.step, rank.input, rank.wake) for rank in word.ranks}
