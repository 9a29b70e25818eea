"""One TCP connection between node 0 of an instance and each other node: the instance lives and dies as one.

Node 0 runs everything that a client or a peer talks to; the others run ranks. They only tell each other whether they
are alive: if a connection closes without a message, that node is gone, whatever ended it.

Both sides begin with a greeting, which has a random number. With a deployment secret, every later frame has a MAC over
both numbers, the direction and the frame's own number: a frame can be neither forged nor replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from pdctl.deployment_secret import ENV, MAC_BYTES
from pdctl.engine.config.process_log import LogRate
from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.messages import HEADER, Codec, FrameError
from pdctl.errors import PdctlError
from pdctl.loopback import fix_of_listening
from pdctl.thread_death import in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs

log = logging.getLogger("pdctl.engine")

LENGTH = 4  # bytes, before every frame
NONCE = 16  # bytes
PURPOSE = "node frame"
FIRST_WORD = 10.0  # seconds a connection has for its greeting and its hello
MOST_UNKNOWN = 64  # connections that have not said which node they are; beyond that the next one is closed
RETRY = 0.2  # seconds between attempts to reach a node 0 that is not there yet
# Flags that may differ between the nodes of one instance; all others must be equal.
OWN = frozenset({"node_rank", "host", "port", "base_gpu_id", "num_threads", "log_level", "model_path", "device"})
# A host that vanishes closes nothing: the kernel probes after 5 s of silence, and gives up 6 s later.
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """The first frame of either side. `signed`: its other frames carry MACs."""

    nonce: Annotated[bytes, Meta(min_length=NONCE, max_length=NONCE)]
    signed: bool


class NodeHello(msgspec.Struct, frozen=True, tag="hello"):
    """A node's first message after its greeting: its flags, as JSON."""

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


Word = Greeting | NodeHello | Refused | Up | Leaving | Lost

codec: Codec[Word] = Codec("node link", 6, (Greeting, NodeHello, Refused, Up, Leaving, Lost), max_bytes=1 << 20)


def difference(ours: ServerArgs, theirs: str) -> str:
    """Return in words the first flag that differs but must not, or an empty string."""
    try:
        given = json.loads(theirs)
    except (ValueError, RecursionError):
        return "its flags are no JSON"
    if not isinstance(given, dict):
        return "its flags are no JSON object"
    for name, value in json.loads(ours.to_json()).items():
        if name not in OWN and given.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            return f"{flag} is {value} on node 0 and {given.get(name)!s:.200} on this node; give every node the same"
    return ""


class NodeWire:
    """A connection, frame by frame. `node0`: this is node 0's end of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        secret: DeploymentSecret | None = None,
        node0: bool = False,
        rate: LogRate | None = None,
    ) -> None:
        """`rate`: for what strangers can trigger, shared by all connections of a listener."""
        self._reader, self._writer = reader, writer
        self._secret = secret
        self._node0 = node0
        self._rate = rate or LogRate(log)
        self._nonce = secrets.token_bytes(NONCE)
        self._both = b""  # nonces, node 0's first; empty before the greetings
        self._sent = self._received = 0
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not all of them everywhere
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def greet(self) -> str:
        """Exchange greetings. Return why this connection cannot be used, or an empty string."""
        self._write(codec.encode(Greeting(self._nonce, self._secret is not None)))
        theirs = await self.receive()
        if not isinstance(theirs, Greeting):
            return "the other side sent no greeting: it is no node of this pdctl version"
        if theirs.signed != (self._secret is not None):
            has, lacks = ("another node", "this one") if theirs.signed else ("this node", "another one")
            return f"{has} has a deployment secret and {lacks} has none; set {ENV} to the same file on every node"
        self._both = self._nonce + theirs.nonce if self._node0 else theirs.nonce + self._nonce
        return ""

    def _mac(self, secret: DeploymentSecret, of_node0: bool, number: int, frame: bytes) -> bytes:
        return secret.mac(PURPOSE, self._both, b"0" if of_node0 else b"n", number.to_bytes(8, "big"), frame)

    def _checked(self, frame: bytes) -> bytes:
        """Return the frame without its MAC. Raise FrameError if the MAC is wrong."""
        if self._secret is None or not self._both:
            return frame
        mac, frame = frame[:MAC_BYTES], frame[MAC_BYTES:]
        expected = self._mac(self._secret, not self._node0, self._received, frame)
        if not hmac.compare_digest(mac, expected):
            raise FrameError(f"node link: the MAC is wrong: the nodes have different files in {ENV}")
        self._received += 1
        return frame

    async def receive(self) -> Word | None:
        """Return the next message; None if the other side is gone, or sent something else."""
        try:
            size = int.from_bytes(await self._reader.readexactly(LENGTH), "big")
            if not HEADER <= size <= codec.max_bytes + MAC_BYTES:
                return None
            return codec.decode(self._checked(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            return None
        except FrameError as error:
            self._rate.warning("Dropping malformed frame: %s", error)
            return None

    def send(self, word: Word) -> None:
        frame = codec.encode(word)
        if self._secret is not None and self._both:
            frame = self._mac(self._secret, self._node0, self._sent, frame) + frame
            self._sent += 1
        self._write(frame)

    def _write(self, frame: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the reader learns of a lost connection
            self._writer.write(len(frame).to_bytes(LENGTH, "big") + frame)

    async def close(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 1.0)
        self._writer.close()


class Nodes:
    """Node 0's side. `stop` is called when another node was told to stop."""

    def __init__(
        self, args: ServerArgs, ranks: Ranks, stop: Callable[[], None], secret: DeploymentSecret | None = None
    ) -> None:
        self._args = args
        self._secret = secret
        self._rate = LogRate(log)
        self._ranks = ranks
        self._stop = stop
        self._wires: dict[int, NodeWire] = {}
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
                fix_of_listening(error, host, "give another --dist-init-addr, the same to every node"),
            ) from None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) - len(self._wires) >= MOST_UNKNOWN:
            writer.close()
            return
        wire = NodeWire(reader, writer, self._secret, node0=True, rate=self._rate)
        task = asyncio.get_running_loop().create_task(self._serve(wire))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, wire: NodeWire) -> None:
        try:
            hello = await asyncio.wait_for(self._introduced(wire), FIRST_WORD)
        except asyncio.TimeoutError:
            hello = None
        if isinstance(hello, NodeHello):
            reason = self._refuse(hello)
            if reason:
                self._rate.error("Refused node %d: %s", hello.node, reason)
                wire.send(Refused(reason))
            else:
                self._wires[hello.node] = wire
                if not self.absent:
                    self.all_here.set()
                await self._listen_or_lose(hello.node, wire)
        await wire.close()

    async def _introduced(self, wire: NodeWire) -> Word | None:
        """Return the first message after the greetings; None if those are missing or cannot be used."""
        unknown = await wire.greet()
        if unknown:
            self._rate.error("Refused a node: %s", unknown)
            return None
        return await wire.receive()

    def _refuse(self, hello: NodeHello) -> str:
        if not 0 < hello.node < self._args.nnodes:
            return f"--node-rank {hello.node} is none of an instance with --nnodes {self._args.nnodes}"
        if hello.node in self._wires:
            return f"another node with --node-rank {hello.node} is already there"
        return difference(self._args, hello.flags)

    async def _listen_or_lose(self, node: int, wire: NodeWire) -> None:
        """Listen to a node. If that raises, the instance has lost the node."""
        try:
            await self._listen(node, wire)
        except Exception as error:
            log.exception("The connection to node %d hit an exception; this instance ends", node)
            self._ranks.lose(f"the connection to node {node} ended on {in_words(error)}")

    async def _listen(self, node: int, wire: NodeWire) -> None:
        reach = fault_points.raiser("thread.node-link", self._args.node_rank)
        while True:
            word = await wire.receive()
            if reach is not None:
                reach()
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
        """Send `word` to every node. After `Leaving` or `Lost` their connections may close."""
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


async def reach(address: tuple[str, int], seconds: float, secret: DeploymentSecret | None = None) -> NodeWire:
    """Return a connection to node 0, once it listens and has been greeted. Raise PdctlError naming it."""
    host, port = address
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            wire = NodeWire(*await asyncio.wait_for(asyncio.open_connection(host, port), FIRST_WORD), secret)
            unknown = await asyncio.wait_for(wire.greet(), FIRST_WORD)
            if not unknown:
                return wire
            await wire.close()
            if ENV in unknown:
                raise PdctlError(f"node 0 at {host}:{port}: {unknown}", "start every node of an instance alike")
            raise ConnectionError(unknown)
        except (OSError, asyncio.TimeoutError) as error:
            if loop.time() > deadline:
                raise PdctlError(
                    f"waited {seconds:g} s for node 0 at {host}:{port}: {getattr(error, 'strerror', None) or error}",
                    "start node 0, and give every node its --dist-init-addr",
                ) from None
        await asyncio.sleep(RETRY)
