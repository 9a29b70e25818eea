"""The ZMQ sockets of a KV manager: one PULL that everybody dials, one watched PUSH per peer. All are its thread's."""

from __future__ import annotations

import ipaddress
import re
from enum import Enum
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdctl.engine.ipc.socket_keys import NOT_ALIKE
from pdctl.engine.kv_link.kv_frames import MAX_FRAME

if TYPE_CHECKING:
    from pdctl.engine.ipc.socket_keys import SocketKeys

# Frames over the codec's limit should reach the codec (which logs them); far larger ones cost the peer its connection.
MAX_MESSAGE = 2 * MAX_FRAME
QUEUE = 16384  # frames to one peer before a send is refused
BACKLOG = 1024  # connections that wait to be accepted
KEEPALIVE_IDLE = 30  # seconds: a host that vanished without a FIN is noticed by TCP itself


# Addresses only: no name is looked up and no source address chosen because a frame says so.
ENDPOINT = re.compile(r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.%\w]{2,60})\]|(?P<four>[0-9.]{7,15})):(?P<port>[0-9]{1,5})")


class LinkError(ValueError):
    """An endpoint that cannot even be dialled."""


class LinkEvent(Enum):
    UP = "connected"
    LOST = "the connection closed"
    REFUSED = "the connection was refused"
    STRANGER = f"the ZMQ handshake failed: {NOT_ALIKE}"


EVENTS = {
    zmq.EVENT_CONNECTED: LinkEvent.UP,
    zmq.EVENT_DISCONNECTED: LinkEvent.LOST,
    zmq.EVENT_CONNECT_RETRIED: LinkEvent.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: LinkEvent.STRANGER,
    # Whichever side sees first that the other has other keys closes; to the slower one the peer has just left.
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: LinkEvent.STRANGER,
}


def tcp(ip: str, port: int) -> str:
    return f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"


def require_address(endpoint: str) -> None:
    """Raise LinkError unless `endpoint` is `tcp://`, the address of one host, and a port from 1 to 65535."""
    found = ENDPOINT.fullmatch(endpoint)
    try:
        if found is None:
            raise ValueError("an address and a port are needed")
        host = ipaddress.ip_address(found["six"] or found["four"])
        if host.is_unspecified or host.is_multicast or str(host) == "255.255.255.255":
            raise ValueError("it is not the address of one host")
        if not 0 < int(found["port"]) < 1 << 16:
            raise ValueError("a port is a number from 1 to 65535")
    except ValueError as error:
        raise LinkError(f"{endpoint!r:.100}: {error}") from None


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, ipv6: bool) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE)
    return socket


class Inbox:
    """Bound to a random free port of `ip`; never to all interfaces. `keys`: peers without them get nothing through."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ip: str, keys: SocketKeys | None = None) -> None:
        self.socket = _socket(context, zmq.PULL, ":" in ip)
        self.socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if keys is not None:
            keys.listen(self.socket)
        failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.monitor = self.socket.get_monitor_socket(failed)
        self.socket.setsockopt(zmq.RCVHWM, QUEUE)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self.port = self.socket.bind_to_random_port(tcp(ip, 0).rsplit(":", 1)[0])
        self.endpoint = tcp(ip, self.port)
        self.fd, self.monitor_fd = self.socket.fileno(), self.monitor.fileno()  # for an event loop

    def receive(self) -> bytes | None:
        """The next frame, or None when there is none now. Several parts are joined: no codec will take that."""
        try:
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def turned_away(self) -> int:
        """How many connections have failed since the last call because the peer holds another secret, or none."""
        count = 0
        while count < QUEUE and self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            count += 1
        return count

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


class Link:
    """Frames to one peer, in order. ZMQ would reconnect silently for ever; `events` tells what happened instead."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> None:
        """Raise LinkError if `endpoint` cannot be dialled; a peer that is not there shows in `events`."""
        require_address(endpoint)
        self.endpoint = endpoint
        self.closed = False
        try:
            self.socket = _socket(context, zmq.PUSH, "[" in endpoint)
        except zmq.ZMQError as error:  # this process has as many sockets as it may have
            raise LinkError(f"{endpoint}: {error.strerror}") from None
        try:
            self.socket.setsockopt(zmq.SNDHWM, QUEUE)
            if keys is not None:
                keys.dial(self.socket)
            self.monitor = self.socket.get_monitor_socket(sum(EVENTS))
            self.monitor_fd = self.monitor.fileno()  # for an event loop
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.socket.disable_monitor()
            self.socket.close(linger=0)
            raise LinkError(f"{endpoint}: {error.strerror}") from None

    def send(self, frame: bytes) -> bool:
        """False when the peer has stopped reading or the link is closed."""
        if self.closed:
            return False
        try:
            self.socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def events(self) -> list[LinkEvent]:
        found: list[LinkEvent] = []
        while not self.closed and self.monitor.poll(0):
            event = EVENTS.get(zmq.Event(recv_monitor_message(self.monitor)["event"]))
            if event is not None:
                found.append(event)
        return found

    def close(self, linger: float = 0.0) -> None:
        """`linger`: seconds that frames not yet on the wire may take."""
        if not self.closed:
            self.closed = True
            self.socket.disable_monitor()
            self.monitor.close(linger=0)  # pyzmq only forgets it; an open socket would hold up the context's end
            self.socket.close(linger=int(linger * 1000))
