"""Where the processes of one instance listen: private ipc:// sockets on one node, TCP ports of the plan on several.

The ports are those of sglang 0.5.23 `PortArgs`: the block D, B … of the port plan. Sockets without a port in the plan
(each rank's own) are bound to free ports, which the ranks exchange at the meeting (engine/cluster/rendezvous.py).

On several nodes the sockets have CURVE keys: without the deployment secret, no frame gets through. Every listening
socket has the same key pair, which is derived from the secret. A peer must know the public half before it connects, and
that half is never sent: for anyone else the handshake fails in libzmq, before a byte reaches this process's decoders.
Frames are encrypted and authenticated with keys of the connection (libsodium) and counted, so that none can be
replayed, dropped, or used on another connection (http://rfc.zeromq.org/spec:26).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils import z85

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.errors import UsageError
from pdctl.layout.serving import PortBlock
from pdctl.name_lookup import look_up

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.layout.shape import RankPlace

    Socket = zmq.Socket[bytes]


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
