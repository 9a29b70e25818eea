"""One TCP connection between node 0 of an instance and each other node: the instance lives and dies as one.

Node 0 has everything a client or a peer talks to; the others run ranks. What they tell each other is only whether they
live: a connection that closes without a word is a node that is gone, whatever ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import TYPE_CHECKING

import msgspec

from pdctl.engine.wire import HEADER, Codec, FrameError
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.args import ServerArgs
    from pdctl.engine.ranks import Ranks

log = logging.getLogger("pdctl.engine")

LENGTH = 4  # bytes, before every frame
RETRY = 0.2  # seconds between attempts to reach a node 0 that is not there yet
# What may differ between the nodes of one instance; every other flag must not.
OWN = frozenset({"node_rank", "host", "port", "base_gpu_id", "num_threads", "log_level", "model_path", "device"})
# A host that vanishes closes nothing: the kernel asks after 5 s of silence, and gives up 6 s later.
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A node's first word: its flags, as JSON."""

    node: int
    flags: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


class Up(msgspec.Struct, frozen=True, tag="up"):
    """The whole instance serves."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """From node 0: the ranks are about to end as told. To node 0: this node was told to stop, so stop the instance."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Something died; the instance ends, with this reason everywhere."""

    reason: str


Word = Hello | Refused | Up | Leaving | Lost

codec: Codec[Word] = Codec("node link", 6, (Hello, Refused, Up, Leaving, Lost), max_bytes=1 << 20)


def difference(ours: ServerArgs, theirs: str) -> str:
    """The first flag two nodes of an instance disagree about, in words; empty when they are one instance."""
    try:
        given = json.loads(theirs)
    except ValueError:
        return "its flags are no JSON"
    for name, value in json.loads(ours.to_json()).items():
        if name not in OWN and given.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            return f"{flag} is {value} on node 0 and {given.get(name)} on this node; give every node the same"
    return ""


class Wire:
    """A connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not all of them everywhere
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def receive(self) -> Word | None:
        """The next word; None when the other side is gone, or does not speak this language."""
        try:
            size = int.from_bytes(await self._reader.readexactly(LENGTH), "big")
            if not HEADER <= size <= codec.max_bytes:
                return None
            return codec.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        except FrameError as error:
            log.warning("Dropping malformed frame: %s", error)
            return None

    def send(self, word: Word) -> None:
        frame = codec.encode(word)
        with contextlib.suppress(OSError, RuntimeError):  # the reader learns of a lost connection
            self._writer.write(len(frame).to_bytes(LENGTH, "big") + frame)

    async def close(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 1.0)
        self._writer.close()


class Nodes:
    """Node 0's side. `stop` is called when another node was told to stop."""

    def __init__(self, args: ServerArgs, ranks: Ranks, stop: Callable[[], None]) -> None:
        self._args = args
        self._ranks = ranks
        self._stop = stop
        self._wires: dict[int, Wire] = {}
        self._ending = False
        self.all_here: asyncio.Event = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, address: tuple[str, int]) -> None:
        host, port = address
        try:
            self._server = await asyncio.start_server(self._connected, host, port, reuse_address=True)
        except OSError as error:
            raise PdctlError(
                f"cannot listen on {host}:{port} for the other nodes: {error.strerror}",
                "give another --dist-init-addr, the same to every node",
            ) from None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(Wire(reader, writer)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, wire: Wire) -> None:
        hello = await wire.receive()
        if isinstance(hello, Hello):
            reason = self._refuse(hello)
            if reason:
                log.error("Refused node %d: %s", hello.node, reason)
                wire.send(Refused(reason))
            else:
                self._wires[hello.node] = wire
                if not self.absent:
                    self.all_here.set()
                await self._listen(hello.node, wire)
        await wire.close()

    def _refuse(self, hello: Hello) -> str:
        if not 0 < hello.node < self._args.nnodes:
            return f"--node-rank {hello.node} is none of an instance with --nnodes {self._args.nnodes}"
        if hello.node in self._wires:
            return f"another node with --node-rank {hello.node} is already there"
        return difference(self._args, hello.flags)

    async def _listen(self, node: int, wire: Wire) -> None:
        while True:
            word = await wire.receive()
            if isinstance(word, Leaving):
                self._stop()
            elif isinstance(word, Lost):
                self._ranks.lose(f"node {node}: {word.reason}")
            elif word is None:
                if not self._ending:
                    self._ranks.lose(f"node {node} is gone")
                return

    @property
    def absent(self) -> list[int]:
        return [node for node in range(1, self._args.nnodes) if node not in self._wires]

    def tell(self, word: Word) -> None:
        """To every node. After `Leaving` or `Lost` their connections may close."""
        self._ending = self._ending or isinstance(word, Leaving | Lost)
        for wire in self._wires.values():
            wire.send(word)

    async def close(self) -> None:
        for wire in self._wires.values():
            await wire.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._server.close()


async def reach(address: tuple[str, int], seconds: float) -> Wire:
    """Node 0, as soon as it listens. Raises PdctlError naming it."""
    host, port = address
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return Wire(*await asyncio.open_connection(host, port))
        except OSError as error:
            if loop.time() > deadline:
                raise PdctlError(
                    f"waited {seconds:g} s for node 0 at {host}:{port}: {error.strerror or error}",
                    "start node 0, and give every node its --dist-init-addr",
                ) from None
        await asyncio.sleep(RETRY)
