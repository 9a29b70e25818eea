"""Where the processes of one instance listen: private ipc:// sockets on one node, TCP ports of the plan on several.

sglang 0.5.23 `PortArgs`: the block D, B … of the port plan. What has no number in the plan (every rank's own sockets)
is bound to a free port and told to the others at the meeting (engine/cluster/rendezvous.py).

On several nodes the sockets have CURVE keys: whoever does not know the deployment's secret gets no frame through. Every
listening socket has one key pair, which follows from the secret. A peer must know the public half before it connects,
and that half is never sent: the handshake fails for everybody else, in libzmq, before a byte reaches this process's
decoders. Frames are encrypted and authenticated with keys of the connection (libsodium) and counted, so that none can
be repeated, left out, or used on another connection (http://rfc.zeromq.org/spec:26).
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
    """One rank's sockets. `input` takes the requests of a DP group, at its leader; `wake` is the world leader's."""

    step: str
    input: str = ""
    wake: str = ""


class Channels(NamedTuple):
    """`meeting` and `nodes` are "" where the instance has one node: every address is known before."""

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
    """What the sockets between the processes of an instance ask of each other.

    Over TCP the deployment secret, where there is one. On one node they lie in a directory that only its user may
    enter (mode 0700), and that is gone before the instance serves.
    """
    return SocketKeys.of(DeploymentSecret.from_environment(os.environ)) if channels.meeting else None


def local_line(ipc_dir: Path, replica: int, rank: RankPlace) -> Line:
    """The sockets of a rank whose instance has one node."""
    return Line(
        f"ipc://{ipc_dir}/step-{replica}-{rank.world_rank}",
        local_input(ipc_dir, rank),
        f"ipc://{ipc_dir}/wake-{replica}",
    )


def local_input(ipc_dir: Path, rank: RankPlace) -> str:
    return f"ipc://{ipc_dir}/scheduler-{rank.dp_rank or 0}"


def dist_address(args: ServerArgs) -> tuple[str, int]:
    """Host and port of --dist-init-addr, which `args.refuse` has looked at."""
    host, _, port = (args.dist_init_addr or "").rpartition(":")
    return host.strip("[]"), int(port)


def own_ip(towards: str) -> str:
    """The address of this machine that faces `towards`: the other nodes reach this one there."""
    family, _, _, _, address = look_up(towards, 9, kind=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: a datagram socket only picks its interface
        return str(probe.getsockname()[0])


PURPOSE = "zmq curve"
# Why a connection that two of pdctl's own processes make does not come about, in the words of both sides.
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
        """None without a secret: then sockets ask for none. Raise UsageError if this libzmq knows no CURVE."""
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
        """Before `connect`; the key pair of this end is made anew."""
        public, private = zmq.curve_keypair()
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, private)
