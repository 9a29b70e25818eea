"""The decode ranks that a prefill rank serves: the socket and pool of each, and each room's pages in the pool."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl import open_files
from pdctl.engine.kv_link import rank_shape
from pdctl.engine.kv_link.kv_frames import (
    MAX_FRAME,
    PROTOCOL,
    Checksums,
    LinkError,
    RegisterAck,
    RegisterKvArgs,
    Status,
    clipped,
    codec,
    other_version,
    pack_pages,
)
from pdctl.engine.kv_link.rank_shape import room_page_bytes
from pdctl.engine.kv_link.room_state import FailureCode
from pdctl.engine.transfer.checksum import Region
from pdctl.engine.transfer.transport import Cut, Op, OpState, TransferError, require_pages
from pdctl.layout.kv_links import piece, speaks
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.engine.kv_link.kv_frames import Frame, Link, TransferInfo
    from pdctl.engine.kv_link.kv_manager import RankContext
    from pdctl.engine.transfer.transport import Pages, TransferPlan, Transport

log = logging.getLogger("pdctl.engine")

MAX_CHECKED_PAGES = MAX_FRAME // 16  # as many as fit into a frame with 8 bytes each; longer rooms are not checked
MAX_SESSIONS = 1024  # the link of each has four file descriptors and three ZMQ sockets, its mapped pool (shm) one more
PER_ENDPOINT = 64  # a decode rank has one for each prefill rank and DP group, and one more while it registers again
FEWEST_SESSIONS = 16
FILES_EACH = 6
FILES_ELSEWHERE = 256  # file descriptors of this process for everything else


@dataclass(slots=True, eq=False)
class DecodeSession:
    """One decode rank, from its registration to the loss of its connection.

    `plan` is None if other ranks write everything: rooms are then counted and answered, but nothing is written.
    `speaks`: this prefill rank sends the first token to that decode rank.
    """

    id: str
    endpoint: str
    link: Link
    num_pages: int  # of the decode's pool
    room_page_bytes: int  # one page of a room over all ranks of the decode's group
    plan: TransferPlan | None
    speaks: bool
    rooms: set[int] = field(default_factory=set)

    def join(self, room: int) -> None:
        self.rooms.add(room)

    def leave(self, room: int) -> None:
        self.rooms.discard(room)

    def tell(self, frame: Frame) -> None:
        if self.link.closed or self.link.send(codec.encode(frame)):
            return
        address = self.endpoint.removeprefix("tcp://")
        if isinstance(frame, Status):
            log.warning(
                "Failed to sync status %d of room %d to %s: it has stopped reading", frame.status, frame.room, address
            )
        else:
            log.warning("Cannot send %s to %s: it has stopped reading", type(frame).__name__, address)


class RegistrationRefusal(NamedTuple):
    code: FailureCode
    reason: str


def refusal(context: RankContext, instance: str, message: RegisterKvArgs) -> RegistrationRefusal | None:
    """Return why this decode cannot be served, with both shapes; None if it can."""
    if message.instance not in ("", instance):
        text = f"this is prefill rank {instance}, not {message.instance} that the bootstrap server named"
        return RegistrationRefusal(FailureCode.STALE_ENDPOINT, text)
    if message.protocol != PROTOCOL:
        return RegistrationRefusal(FailureCode.MISMATCH, other_version(message.protocol))
    reason = rank_shape.mismatch(context.shape, message.shape)
    if not reason and message.backend != context.transport.name:
        reason = (
            f"Transfer backend mismatch: prefill={context.transport.name}, decode={message.backend}. "
            "Both servers must use the same --disaggregation-transfer-backend value."
        )
    return RegistrationRefusal(FailureCode.MISMATCH, reason) if reason else None


def planned(context: RankContext, message: RegisterKvArgs) -> TransferPlan | None:
    """Return what goes to this decode, None for nothing. Raise TransferError if the pools do not fit each other."""
    found = piece(context.shape.kv_model, context.shape.seat, message.shape.seat)
    if found is None:
        return None
    context.transport.add_peer(message.session, message.descriptor)
    cut = Cut(
        slabs=found.slabs,
        heads=found.heads,
        local_slab=found.local_slab,
        remote_slab=found.remote_slab,
        local_head=found.local_head,
        remote_head=found.remote_head,
    )
    return context.transport.plan(message.session, context.geometry, message.geometry, cut)


def open_session(
    context: RankContext, instance: str, make_room: Callable[[str], str], message: RegisterKvArgs
) -> DecodeSession | None:
    """Answer a registration; return None if it is refused. The decode is told why, in the same words as our log.

    `make_room` returns why one more session of an endpoint does not fit, or an empty string if it does.
    """
    refused, plan = refusal(context, instance, message), None
    if refused is None:
        try:
            plan = planned(context, message)
        except (TransferError, ValueError, OverflowError, MemoryError) as error:
            context.transport.drop_peer(message.session)
            refused = RegistrationRefusal(
                FailureCode.MISMATCH, rank_shape.both(f"{error}.", context.shape.words, message.shape)
            )
    crowded = make_room(message.endpoint) if refused is None else ""
    if crowded:
        context.transport.drop_peer(message.session)
        refused = RegistrationRefusal(FailureCode.MISMATCH, crowded)
    answer = codec.encode(_answer(context, message.session, refused))
    try:
        if refused is not None:
            context.rate.error("Refused decode session %s (%s): %s", message.session, message.endpoint, refused.reason)
            context.loop.send_once(message.endpoint, answer)
            return None
        link = context.loop.connect(message.endpoint)
    except LinkError as error:
        context.rate.error("Cannot answer decode session %s: %s", message.session, error)
        context.transport.drop_peer(message.session)
        return None
    link.send(answer)
    log.info("Register KVArgs from %s successfully", message.session)
    first = speaks(context.shape.kv_model, context.shape.seat, message.shape.seat)
    return DecodeSession(
        id=message.session,
        endpoint=message.endpoint,
        link=link,
        num_pages=message.geometry.num_pages,
        room_page_bytes=room_page_bytes(message.shape, message.geometry),
        plan=plan,
        speaks=first,
    )


def _answer(context: RankContext, session: str, refused: RegistrationRefusal | None) -> RegisterAck:
    code, reason = (refused.code.value, clipped(refused.reason)) if refused else ("", "")
    return RegisterAck(session, context.endpoint, context.host, refused is None, reason, code)


def capacity() -> int:
    """Return MAX_SESSIONS, or fewer, with a warning, if this process may not open enough files for that many."""
    files, needed = open_files.limit(), FILES_ELSEWHERE + FILES_EACH * MAX_SESSIONS
    if files >= needed:
        return MAX_SESSIONS
    most = max(FEWEST_SESSIONS, (files - FILES_ELSEWHERE) // FILES_EACH)
    log.warning(
        "%d file descriptors (ulimit -n) are enough for %d decode ranks at once, not for %d: raise the limit to %d",
        files, most, MAX_SESSIONS, needed,
    )  # fmt: skip
    return most


class SessionTable:
    """Sessions in order of last use; the one that has been idle for longest makes room for a new one."""

    def __init__(self, most: int | None = None, per_endpoint: int = PER_ENDPOINT) -> None:
        self._most = capacity() if most is None else most
        self._per_endpoint = per_endpoint
        self._kept: OrderedDict[str, DecodeSession] = OrderedDict()
        self._by_link: dict[Link, DecodeSession] = {}
        self._by_endpoint: dict[str, dict[str, DecodeSession]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> tuple[DecodeSession, ...]:
        return tuple(self._kept.values())

    def get(self, session: str) -> DecodeSession | None:
        return self._kept.get(session)

    def by_link(self, link: Link) -> DecodeSession | None:
        return self._by_link.get(link)

    def use(self, session: str) -> DecodeSession | None:
        """Return the session, and mark it as the one used last."""
        found = self._kept.get(session)
        if found is not None:
            self._kept.move_to_end(session)
            same = self._by_endpoint[found.endpoint]
            same[session] = same.pop(session)
        return found

    def add(self, session: DecodeSession) -> None:
        self._kept[session.id] = session
        self._by_link[session.link] = session
        self._by_endpoint.setdefault(session.endpoint, {})[session.id] = session

    def pop(self, session: str) -> DecodeSession | None:
        found = self._kept.pop(session, None)
        if found is not None:
            del self._by_link[found.link]
            same = self._by_endpoint[found.endpoint]
            del same[session]
            if not same:
                del self._by_endpoint[found.endpoint]
        return found

    def make_room(
        self, endpoint: str, idle: Callable[[DecodeSession], bool], evict: Callable[[DecodeSession], None]
    ) -> str:
        """Evict an idle session if one more of `endpoint` does not fit; return why it does not if all are busy."""
        same = self._by_endpoint.get(endpoint, {})
        if len(same) >= self._per_endpoint and not _evicted(same.values(), idle, evict):
            return f"{len(same)} sessions of decode rank {endpoint} have rooms here; one decode rank may have no more"
        if len(self._kept) >= self._most and not _evicted(self._kept.values(), idle, evict):
            return f"this prefill rank serves {len(self._kept)} decode sessions, all with rooms; it can serve no more"
        return ""


def _evicted(
    sessions: Iterable[DecodeSession], idle: Callable[[DecodeSession], bool], evict: Callable[[DecodeSession], None]
) -> bool:
    found = next((session for session in sessions if idle(session)), None)
    if found is not None:
        evict(found)
    return found is not None


@dataclass(frozen=True, slots=True)
class Chunk:
    pages: Pages
    last: bool
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ChunkInFlight:
    """A chunk on its way to every decode rank of the room."""

    chunk: Chunk
    began: float  # monotonic seconds
    ops: list[Op]

    @property
    def done(self) -> bool:
        return all(op.state == OpState.DONE for op in self.ops)

    def note(self, room: int) -> None:
        nbytes = sum(op.nbytes for op in self.ops)
        log.info(
            "room=%d sent chunk pages=%d last=%s bytes=%d seconds=%.6f",
            room, len(self.chunk.pages), self.chunk.last, nbytes, time.monotonic() - self.began,
        )  # fmt: skip


def note_page_list(info: TransferInfo) -> None:
    """Log the line of sglang 0.5.3 to 0.5.23 with nixl (there at debug level)."""
    required = info.required_dst_info_num
    log.info("got info room=%d agent_name='%s' required_dst_info_num=%d", info.room, info.session, required)


@dataclass(slots=True, eq=False)
class ChunkDestination:
    """A dummy is counted but gets no data. `nbytes`, `chunks` and `descriptors` count what was posted."""

    session: DecodeSession
    info: TransferInfo
    pages: Pages
    nbytes: int = 0
    chunks: int = 0
    descriptors: int = 0
    posted: list[tuple[Pages, Op]] = field(default_factory=list)  # our pages, in order

    def check(self) -> str:
        """Return what is wrong with the page list, or an empty string."""
        try:
            require_pages(f"page list of {self.session.endpoint}", self.pages, self.session.num_pages)
        except TransferError as error:
            return str(error)
        return ""

    @property
    def expected(self) -> int:
        """Pages of the whole prompt, including those that the decode already has."""
        return self.info.decode_prefix_pages + len(self.pages)

    def wrong_length(self, sent: int, last: bool) -> bool:
        return sent > self.expected or (last and sent != self.expected)

    def post(self, transport: Transport, pages: Pages, first: int) -> Op:
        """Write our `pages`, which are the prompt's from number `first` on, to the decode's pages for them.

        Pages that the decode already has are left out. Raise TransferError for invalid pages.
        """
        session, prefix = self.session, self.info.decode_prefix_pages
        pages, first = pages[max(0, prefix - first) :], max(0, first - prefix)
        if session.plan is None or (prefix and not len(pages)):
            return Op(session.id, 0, OpState.DONE)
        op = transport.post(session.plan, pages, self.pages[first : first + len(pages)])
        self.nbytes += op.nbytes
        self.descriptors += op.descriptors
        self.chunks += bool(len(pages))
        self.posted.append((pages, op))
        return op

    @property
    def checksums(self) -> Checksums | None:
        """The checksums of the pages written, or None; valid once every write has ended."""
        sums = b"".join(op.sums for _, op in self.posted)
        if self.session.plan is None or not sums or len(sums) // 4 > MAX_CHECKED_PAGES:
            return None
        pages = b"".join(pack_pages(pages) for pages, _ in self.posted)
        region = Region.theirs(self.session.plan.cut)
        return Checksums(region.first_slab, region.slabs, region.first_head, region.heads, pages, sums)
