"""The frames decode and prefill ranks exchange, and the ZMQ sockets they go through.

    decode → prefill   RegisterKvArgs   once per connection: where my pool is and how it is laid out
    prefill → decode   RegisterAck      accepted, or both values of what does not fit
    decode → prefill   TransferInfo     once per room: the pages to write into
    prefill → decode   Status           the room's fate; success carries the metadata row of the first token
    decode → prefill   Abort            do not write into that room's pages any more
    prefill → decode   AbortAck         nothing of that room is being written
    decode → prefill   Unregister       this connection is given up

Every frame is one ZMQ part in the engine's wire format. `endpoint` is always the sender's own PULL socket, which
everybody dials; decode dials first. There is one watched PUSH socket per peer. Only the manager's thread uses them.
"""

from __future__ import annotations

import ipaddress
import math
import re
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import zmq
from msgspec import Meta
from zmq.utils.monitor import recv_monitor_message

from pdctl.engine.ipc.channels import NOT_ALIKE
from pdctl.engine.ipc.messages import HEADER, MALFORMED, Codec
from pdctl.engine.kv_link.rank_shape import RankShape  # noqa: TC001  # msgspec reads these two at run time
from pdctl.engine.kvcache.pool_geometry import PoolGeometry  # noqa: TC001
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from pdctl.engine.ipc.channels import SocketKeys
    from pdctl.engine.transfer.transport import Pages

PROTOCOL = 1  # increased whenever an older peer would misunderstand a frame
KIND = 3
MAX_FRAME = 8 << 20  # bytes, enough for two million page ids
MAX_TEXT = 4096

Room = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]  # so that the sum over all ranks still fits in a frame
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Endpoint = Annotated[str, Meta(pattern=r"^tcp://.{1,255}:[0-9]{1,5}$", max_length=280)]
# Frames over the codec's limit should reach the codec, which logs them; far larger ones cost the peer its connection.
MAX_MESSAGE = 2 * MAX_FRAME
QUEUE = 16384  # frames to one peer before a send is refused
BACKLOG = 1024  # connections waiting to be accepted
GREETING_WITHIN = 10_000  # ms a connection may stay silent, instead of libzmq's 30 s: each holds a file descriptor
ROW_VERSION = 1
MAX_TOP_LOGPROBS = 128
ANY = 2**31  # token ids and counts of a metadata row are i32 on the wire
ROW_HEADER = struct.Struct("<BBHiQif")
ROW_PAIR = struct.Struct("<if")
KEEPALIVE_IDLE = 30  # seconds: TCP itself notices a host that vanished without a FIN
# Addresses only: a frame must not make us look up a name or choose a source address.
ENDPOINT = re.compile(r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.%\w]{2,60})\]|(?P<four>[0-9.]{7,15})):(?P<port>[0-9]{1,5})")


class RegisterKvArgs(msgspec.Struct, frozen=True, tag="register"):
    session: Name  # one connection of a decode rank
    endpoint: Endpoint
    host: Text  # identity of the machine, not its address
    backend: Name
    descriptor: Annotated[bytes, Meta(max_length=65536)]
    geometry: PoolGeometry
    shape: RankShape
    instance: Text = ""  # the rank that is meant, as the bootstrap server named it; any other rank must refuse
    protocol: Count = PROTOCOL


class Hello(msgspec.Struct, frozen=True, tag="register"):
    """The part of a registration that every version has: enough to answer one that cannot be decoded."""

    session: Name
    endpoint: Endpoint
    protocol: Count = 0


class RegisterAck(msgspec.Struct, frozen=True, tag="registered"):
    session: Name  # the decode's session, as it registered
    endpoint: Endpoint
    host: Text
    accepted: bool
    reason: Text = ""
    code: Text = ""


class TransferInfo(msgspec.Struct, frozen=True, tag="transfer_info"):
    """`pages` are little-endian int32 page ids. `generation` distinguishes two uses of one room number.

    The decode already has the first `decode_prefix_pages` pages of the prompt: they are not in `pages`, and not sent
    (sglang 0.5.13 to 0.5.23: decode_prefix_len, in tokens).
    """

    room: Room
    session: Name
    endpoint: Endpoint
    generation: Count
    pages: bytes
    required_dst_info_num: Count = 1
    is_dummy: bool = False
    decode_prefix_pages: Count = 0


class Checksums(msgspec.Struct, frozen=True):
    """What one prefill rank wrote into one decode rank: the part of each page, in the decode's pool, and its CRC-32.

    `pages` are the prefill's own page ids, `sums` little-endian 32-bit numbers, both in the order of the page list.
    """

    first_slab: Count
    slabs: Count
    first_head: Count
    heads: Count
    pages: bytes
    sums: bytes


class Status(msgspec.Struct, frozen=True, tag="status"):
    """`status` is a KVPoll: TRANSFERRING asks the decode to lend its thread, FAILED and SUCCESS are final.

    `nbytes`, `chunks` and `descriptors` are what this prefill rank has written into this decode rank for the room;
    `seconds` is how long it spent writing for the room, to any decode rank.
    """

    room: Room
    session: Name
    generation: Count
    status: Annotated[int, Meta(ge=0, le=4)]
    prefill_rank: Count
    code: Text = ""
    reason: Text = ""
    metadata: Annotated[bytes, Meta(max_length=1 << 20)] = b""
    nbytes: Amount = 0
    chunks: Count = 0
    descriptors: Amount = 0
    seconds: Annotated[float, Meta(ge=0, le=2**31)] = 0.0
    checksums: Checksums | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """`notice`: the pages were never announced to this rank, so no AbortAck is expected."""

    room: Room
    session: Name
    endpoint: Endpoint
    generation: Count
    reason: Text = ""
    code: Text = ""
    notice: bool = False


class AbortAck(msgspec.Struct, frozen=True, tag="abort_ack"):
    room: Room
    session: Name
    generation: Count
    prefill_rank: Count


class Unregister(msgspec.Struct, frozen=True, tag="unregister"):
    session: Name


Frame = RegisterKvArgs | RegisterAck | TransferInfo | Status | Abort | AbortAck | Unregister

codec: Codec[Frame] = Codec(
    "KV handshake", KIND, (RegisterKvArgs, RegisterAck, TransferInfo, Status, Abort, AbortAck, Unregister), MAX_FRAME
)


def hello(frame: bytes) -> Hello | None:
    """Return the registration in a frame of any version; None if it is not one."""
    try:
        return msgspec.msgpack.decode(frame[HEADER:], type=Hello)
    except MALFORMED:
        return None


def other_version(theirs: int) -> str:
    """Return why a decode that speaks version `theirs` is refused."""
    return (
        f"KV handshake version mismatch: prefill={PROTOCOL}, decode={theirs}. "
        "Run the same pdctl version on the prefill and the decode side."
    )


def pack_pages(pages: Pages) -> bytes:
    return pages.astype("<i4", copy=False).tobytes()


def unpack_pages(data: bytes) -> Pages:
    """Return the page ids. Raise ValueError if the bytes are not a whole number of them."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def clipped(text: str) -> str:
    """Return `text`, cut to fit in a frame."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


class ContextCorruptionError(PdctlError):
    """What arrived does not belong to this room, or cannot be right."""


@dataclass(frozen=True, slots=True)
class MetadataRow:
    """The first token's data, which travel with the last KV chunk (sglang 0.5.23 MetadataBuffers).

    `logprob` is NaN if none was asked for. On the wire, little-endian: version u8, count of top logprobs u8, reserved
    u16, output_id i32, room u64, cached_tokens i32, logprob f32, then per top logprob: token i32, logprob f32.
    """

    room: int
    output_id: int
    cached_tokens: int = 0
    logprob: float = math.nan
    top_logprobs: tuple[tuple[int, float], ...] = ()

    def encode(self) -> bytes:
        count = len(self.top_logprobs)
        if count > MAX_TOP_LOGPROBS:
            raise ValueError(f"{count} top logprobs do not fit in a metadata row; the limit is {MAX_TOP_LOGPROBS}")
        head = ROW_HEADER.pack(ROW_VERSION, count, 0, self.output_id, self.room, self.cached_tokens, self.logprob)
        return head + b"".join(ROW_PAIR.pack(token, value) for token, value in self.top_logprobs)

    @classmethod
    def decode(cls, data: bytes) -> MetadataRow:
        """Parse a row. Raise ContextCorruptionError if the bytes are not a whole row of this version."""
        if len(data) < ROW_HEADER.size:
            raise ContextCorruptionError(f"metadata of {len(data)} bytes; a row has at least {ROW_HEADER.size}")
        version, count, _, output_id, room, cached_tokens, logprob = ROW_HEADER.unpack_from(data)
        if version != ROW_VERSION:
            raise ContextCorruptionError(
                f"metadata row of version {version}, this engine reads {ROW_VERSION}",
                "run the same pdctl version on the prefill and the decode side",
            )
        if len(data) != ROW_HEADER.size + count * ROW_PAIR.size:
            raise ContextCorruptionError(f"metadata of {len(data)} bytes does not hold {count} top logprobs")
        pairs = tuple(ROW_PAIR.iter_unpack(data[ROW_HEADER.size :]))
        return cls(room, output_id, cached_tokens, logprob, pairs)


def believed_row(data: bytes | None, room: int, prompt: int = ANY, vocab: int = ANY) -> MetadataRow:
    """Return the row that arrived for `room`, whose prompt has `prompt` tokens; valid token ids are below `vocab`.

    Raise ContextCorruptionError if nothing arrived, or if the row is malformed, another room's, or has impossible token
    ids or counts.
    """
    if data is None:
        raise ContextCorruptionError(f"no metadata of room {room} arrived")
    row = MetadataRow.decode(data)
    if row.room != room:
        raise ContextCorruptionError(
            f"context corruption detected: the metadata row carries room {row.room}, expected room {room}",
            "the KV pages of both rooms are suspect: the request is aborted, nothing is reused",
        )
    for token in (row.output_id, *(token for token, _ in row.top_logprobs)):
        if not 0 <= token < vocab:
            raise ContextCorruptionError(
                f"metadata of room {room} names token {token}; the vocabulary has 0 to {vocab - 1}",
                "start prefill and decode with the same model",
            )
    if not 0 <= row.cached_tokens <= prompt:
        raise ContextCorruptionError(
            f"metadata of room {room} says that {row.cached_tokens} of {prompt} prompt tokens were cached",
            "start prefill and decode with the same pdctl version",
        )
    return row


class LinkError(ValueError):
    """An endpoint that cannot be dialled at all."""


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
    # The side that notices the wrong keys first closes the connection; the slower side sees only that the peer left.
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: LinkEvent.STRANGER,
}


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def tcp(ip: str, port: int) -> str:
    return f"tcp://{join_host_port(ip, port)}"


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
    """A PULL socket on a random free port of `ip`, never on all interfaces. Peers without `keys` cannot get through."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ip: str, keys: SocketKeys | None = None) -> None:
        self.socket = _socket(context, zmq.PULL, ":" in ip)
        self.socket.setsockopt(zmq.BACKLOG, BACKLOG)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, GREETING_WITHIN)
        if keys is not None:
            keys.listen(self.socket)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._shaking = 0  # connections that are neither through the handshake nor gone
        self.socket.setsockopt(zmq.RCVHWM, QUEUE)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self.port = self.socket.bind_to_random_port(tcp(ip, 0).rsplit(":", 1)[0])
        self.endpoint = tcp(ip, self.port)
        self.fd, self.monitor_fd = self.socket.fileno(), self.monitor.fileno()  # for an event loop

    def receive(self) -> bytes | None:
        """Return the next frame, or None if there is none. Several parts are joined: no codec accepts the result."""
        try:
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def turned_away(self) -> int:
        """Return how many connections have ended since the last call without a handshake: the peer is a stranger.

        libzmq 4.3 tells of no failed handshake if a socket with keys is sent what is no ZMTP greeting, such as HTTP, so
        ends are counted. An end does not say whose it is: while handshakes are under way, it is taken for one of these,
        and taken back (-1) if a handshake succeeds that then is one too many.
        """
        count = 0
        for _ in range(QUEUE):
            if not self.monitor.poll(0):
                break
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_ACCEPTED:
                self._shaking += 1
            elif self._shaking:
                self._shaking -= 1
                count += event == zmq.EVENT_DISCONNECTED
            else:
                count -= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        return count

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


class Link:
    """Frames to one peer, in order. ZMQ would reconnect silently for ever; `events` reports what happened instead."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> None:
        """Raise LinkError if `endpoint` cannot be dialled. A peer that is not there shows up in `events`."""
        require_address(endpoint)
        self.endpoint = endpoint
        self.closed = False
        try:
            self.socket = _socket(context, zmq.PUSH, "[" in endpoint)
        except zmq.ZMQError as error:  # this process has reached its limit of sockets
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
        """Return False if the peer has stopped reading or the link is closed."""
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
        """Close the link. Frames not yet on the wire have `linger` seconds to leave."""
        if not self.closed:
            self.closed = True
            self.socket.disable_monitor()
            self.monitor.close(linger=0)  # pyzmq only forgets it; an open socket would block the context's end
            self.socket.close(linger=int(linger * 1000))
