"""CURVE keys for the ZMQ sockets of a deployment: whoever does not know its secret gets no frame through.

Every listening socket has one key pair, which follows from the deployment secret. A peer must know the public half
before it connects, and that half is never sent: the handshake fails for everybody else, in libzmq, before a byte
reaches this process's decoders. Frames are encrypted and authenticated with keys of the connection (libsodium) and
counted, so that none can be repeated, left out, or used on another connection (http://rfc.zeromq.org/spec:26).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from pdctl.deployment_secret import ENV
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pdctl.deployment_secret import DeploymentSecret

    Socket = zmq.Socket[bytes]

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
