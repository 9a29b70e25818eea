"""Where the processes of one instance listen: private ipc:// sockets on one node, TCP ports of the plan on several.

The ports are those of sglang 0.5.23 `PortArgs`: the block D, B … of the port plan. Sockets without a port in the plan
(each rank's own) are bound to free ports, which the ranks exchange at a meeting: each tells node 0 where it listens,
and gets the answers of all. That is sglang's worker-port handshake, on the same port of the plan (D + 13, 0.5.8 and
later), except that in sglang node 0 picks the ports.

On several nodes the sockets have CURVE keys: without the deployment secret, no frame gets through. Every listening
socket has the same key pair, which is derived from the secret. A peer must know the public half before it connects, and
that half is never sent: for anyone else the handshake fails in libzmq, before a byte reaches this process's decoders.
Frames are encrypted and authenticated with keys of the connection (libsodium) and counted, so that none can be
replayed, dropped, or used on another connection (http://rfc.zeromq.org/spec:26).
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import zmq
from msgspec import Meta
from zmq.utils import z85

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.engine.config.process_log import LogRate
from pdctl.engine.ipc.messages import Codec, FrameError
from pdctl.errors import NotReadyError, UsageError
from pdctl.layout.ports import PortBlock
from pdctl.name_lookup import look_up
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.layout.shape import RankPlace

    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")


class Line(NamedTuple):
    """One rank's addresses. `input`, of a leader, takes the requests of its DP group; `wake` is the world leader's."""

    step: str
    input: str = ""
    wake: str = ""


class Channels(NamedTuple):
    """`meeting` and `nodes` are empty if the instance has one node: all addresses are then known beforehand."""

    tokenizer: str
    controller: str
    meeting: str = ""
    nodes: tuple[str, int] = ("", 0)

    @classmethod
    def of(cls, args: ServerArgs, ipc_dir: Path) -> Channels:
        if args.nnodes == 1:
            return cls(f"ipc://{ipc_dir}/tokenizer", f"ipc://{ipc_dir}/controller")
        name, port = dist_address(args)
        host = look_up(name, port)[0].host  # ZMQ binds addresses only
        block = PortBlock.of(port)
        where = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        return cls(
            f"{where}:{block.tokenizer}",
            f"{where}:{block.controller}",
            f"{where}:{block.handshake}",
            (host, block.rpc),
        )


def keys_of(channels: Channels) -> SocketKeys | None:
    """Return the keys of the sockets between the processes of an instance, or None.

    Over TCP they come from the deployment secret, if there is one. On one node the sockets need none: they are in a
    directory that only its user may enter (mode 0700), and that is removed before the instance serves.
    """
    return SocketKeys.of(DeploymentSecret.from_environment(os.environ)) if channels.meeting else None


def local_line(ipc_dir: Path, replica: int, rank: RankPlace) -> Line:
    """Return the sockets of a rank whose instance has one node."""
    return Line(
        f"ipc://{ipc_dir}/step-{replica}-{rank.world_rank}",
        local_input(ipc_dir, rank),
        f"ipc://{ipc_dir}/wake-{replica}",
    )


def local_input(ipc_dir: Path, rank: RankPlace) -> str:
    return f"ipc://{ipc_dir}/scheduler-{rank.dp_rank or 0}"


def dist_address(args: ServerArgs) -> tuple[str, int]:
    """Return host and port of --dist-init-addr, which `engine_flags.first_problem` has checked."""
    host, _, port = (args.dist_init_addr or "").rpartition(":")
    return host.strip("[]"), int(port)


def own_ip(towards: str) -> str:
    """Return the address of this machine on the way to `towards`: there the other nodes reach it."""
    family, _, _, _, address = look_up(towards, 9, kind=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: a datagram socket only picks its interface
        return str(probe.getsockname()[0])


PURPOSE = "zmq curve"
# Why a connection between two of pdctl's own processes fails, in the same words on both sides.
NOT_ALIKE = (
    f"the two do not hold the same deployment secret; give both the same file in {ENV}, or neither "
    "(launch --no-deployment-secret)"
)


@dataclass(frozen=True, slots=True, repr=False)
class SocketKeys:
    """`public` and `private` of the listening sockets, as Z85 text."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return "SocketKeys(…)"

    @classmethod
    def of(cls, secret: DeploymentSecret | None) -> SocketKeys | None:
        """Return None without a secret: sockets then need no keys. Raise UsageError if this libzmq has no CURVE."""
        if secret is None:
            return None
        if not zmq.has("curve"):
            raise UsageError(
                f"libzmq {zmq.zmq_version()} has no CURVE, which the deployment secret needs",
                f"install pyzmq from its wheel, or unset {ENV} everywhere",
            )
        private = z85.encode(secret.mac(PURPOSE))
        return cls(zmq.curve_public(private), private)

    def listen(self, socket: Socket) -> None:
        """Make `socket` require CURVE keys. Call it before `bind`."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.private)

    def dial(self, socket: Socket) -> None:
        """Give `socket` the public key and a new key pair of its own. Call it before `connect`."""
        public, private = zmq.curve_keypair()
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, private)


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

meeting_codec: Codec[Word] = Codec("rank meeting", 5, (Here, Everybody), max_bytes=1 << 20)


class Meeting:
    """Node 0's side, on its event loop: answers no one until all `expected` ranks have joined.

    The first process that claims a rank has it. `keys`: peers without them cannot connect.
    """

    def __init__(self, address: str, expected: int, keys: SocketKeys | None = None) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, meeting_codec.max_bytes)
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
            word = meeting_codec.decode(frames[-1] if frames else b"")
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
        everybody = meeting_codec.encode(Everybody([self.ranks[rank] for rank in sorted(self.ranks)]))
        for waiting in self._waiting:
            self._socket.send_multipart([waiting, b"", everybody])
        self._waiting = []


def meet(address: str, here: Here, seconds: float, keys: SocketKeys | None = None) -> dict[int, Line]:
    """Return all sockets by world rank. Raise NotReadyError naming where it waited, `PATIENCE` after the deadline."""
    seconds += PATIENCE
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
        socket.setsockopt(zmq.MAXMSGSIZE, meeting_codec.max_bytes)
        if keys is not None:
            keys.dial(socket)
        failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        monitor = socket.get_monitor_socket(failed)
        socket.connect(address)
        socket.send(meeting_codec.encode(here))
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        strange = monitor in dict(poller.poll(int(seconds * 1000)))
        socket.disable_monitor()
        monitor.close(linger=0)
        if strange:
            raise NotReadyError(f"the ZMQ handshake with node 0 at {address} failed", NOT_ALIKE)
        try:
            word = meeting_codec.decode(socket.recv(zmq.DONTWAIT))
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
