"""The frames decode and prefill ranks exchange over ZMQ. Decode dials; answers go to the decode's own socket.

    decode → prefill   RegisterKvArgs   once per connection: where my pool is and how it is laid out
    prefill → decode   RegisterAck      accepted, or both values of what does not fit
    decode → prefill   TransferInfo     once per room: the pages to write into
    prefill → decode   Status           the room's fate; success carries the metadata row of the first token
    decode → prefill   Abort            do not write into that room's pages any more
    prefill → decode   AbortAck         nothing of that room is being written
    decode → prefill   Unregister       this connection is given up

Every frame is one ZMQ part in the engine's wire format. `endpoint` is always the sender's own PULL socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pdctl.engine.ipc.codec import HEADER, MALFORMED, Codec
from pdctl.engine.kv_link.rank_shape import RankShape  # noqa: TC001
from pdctl.engine.kvcache.pool_geometry import PoolGeometry  # noqa: TC001  # msgspec reads it at run time

if TYPE_CHECKING:
    from pdctl.engine.transfer.transport import Pages

PROTOCOL = 1  # grows whenever an older peer would misunderstand a frame
KIND = 3
MAX_FRAME = 8 << 20  # two million pages
MAX_TEXT = 4096

Room = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]  # the sum of those of all ranks fits a frame, too
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Endpoint = Annotated[str, Meta(pattern=r"^tcp://.{1,255}:[0-9]{1,5}$", max_length=280)]


class RegisterKvArgs(msgspec.Struct, frozen=True, tag="register"):
    session: Name  # one connection of a decode rank
    endpoint: Endpoint
    host: Text  # identity of the machine, not its address
    backend: Name
    descriptor: Annotated[bytes, Meta(max_length=65536)]
    geometry: PoolGeometry
    shape: RankShape
    instance: Text = ""  # the rank that is meant, as the bootstrap server named it; another one must refuse
    protocol: Count = PROTOCOL


class Hello(msgspec.Struct, frozen=True, tag="register"):
    """What of a registration every version has: enough to answer one that cannot be read."""

    session: Name
    endpoint: Endpoint
    protocol: Count = 0


class RegisterAck(msgspec.Struct, frozen=True, tag="registered"):
    session: Name  # the decode's, as it registered
    endpoint: Endpoint
    host: Text
    accepted: bool
    reason: Text = ""
    code: Text = ""


class TransferInfo(msgspec.Struct, frozen=True, tag="transfer_info"):
    """`pages` are little-endian int32 page ids. `generation` tells two uses of one room number apart.

    The decode has the first `decode_prefix_pages` pages of the prompt already: they are not in `pages`, and not sent
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

    `nbytes`, `chunks` and `descriptors`: what this prefill rank has written into this decode rank for the room;
    `seconds` in which it wrote for the room, to whomever.
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
    """`notice`: the pages were never announced to this rank, so that nobody waits for an AbortAck."""

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
    """The registration in a frame of any version; None where there is none."""
    try:
        return msgspec.msgpack.decode(frame[HEADER:], type=Hello)
    except MALFORMED:
        return None


def other_version(theirs: int) -> str:
    """Why a decode that speaks version `theirs` is refused."""
    return (
        f"KV handshake version mismatch: prefill={PROTOCOL}, decode={theirs}. "
        "Run the same pdctl version on the prefill and the decode side."
    )


def pack_pages(pages: Pages) -> bytes:
    return pages.astype("<i4", copy=False).tobytes()


def unpack_pages(data: bytes) -> Pages:
    """Raises ValueError when the bytes are not whole page ids."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def clipped(text: str) -> str:
    """`text`, short enough for a frame."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
