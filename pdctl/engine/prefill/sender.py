"""The prefill's end of a room: waits for the decode's page list, then sends chunks, the metadata with the last.

The scheduler's thread calls the first methods below; they only post calls to the manager's thread, which does the rest.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.kv_frames import Status, clipped, unpack_pages
from pdctl.engine.kv_link.kv_loop import BUSY_POLL
from pdctl.engine.kv_link.room_state import Failure, FailureCode, FakeSender, KVPoll, TransferStats
from pdctl.engine.prefill.decode_sessions import Chunk, ChunkDestination, ChunkInFlight, note_page_list
from pdctl.engine.transfer.transport import Op, OpState, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_frames import TransferInfo
    from pdctl.engine.kv_link.kv_loop import Timer
    from pdctl.engine.kv_link.kv_manager import RankContext
    from pdctl.engine.prefill.decode_sessions import DecodeSession
    from pdctl.engine.transfer.transport import Pages

log = logging.getLogger("pdctl.engine")


class PrefillRooms(Protocol):
    """The rooms of a prefill rank, and its decode sessions."""

    def concluded(self, sender: KvSender) -> None:
        """Take note that the room is final."""
        ...

    def watch(self, sender: KvSender) -> None:
        """Call the sender's `check` until it returns False: writes are under way."""
        ...

    def refuse(self, info: TransferInfo, failure: Failure) -> None:
        """Answer a page list that the room cannot take."""
        ...

    def lost(self, session: DecodeSession, detail: str) -> None:
        """Drop a decode rank as gone: a write into it failed."""
        ...

    def lost_peer(self, peer: str, detail: str) -> None:
        """Do the same, by the name of its session."""
        ...


class KvSender:
    """`poll` returns FAILED only when no write of the room is under way any more: its pages may then be freed."""

    def __init__(self, room: int, rid: str, prefill_rank: int, context: RankContext, rooms: PrefillRooms) -> None:
        self.room = room
        self.rid = rid
        self.failure: Failure | None = None
        self.stats = TransferStats()
        self._prefill_rank = prefill_rank
        self._context = context
        self._rooms = rooms
        self._state = KVPoll.BOOTSTRAPPING
        self._created = time.monotonic()
        self._began = 0.0
        self._busy_from = 0.0  # when the current ops, or the last ones, began
        self._moving = 0.0  # seconds in which ops ran
        self._destinations: dict[str, ChunkDestination] = {}
        self._chunks: list[Chunk] = []
        self._running: list[Op] = []
        self._parts: list[ChunkInFlight] = []  # chunks that have not arrived everywhere
        self._helpers: set[str] = set()  # sessions that were told of running ops
        self._stuck_at = 0.0  # when ops that still run fail the room
        self._deadline = 0.0  # when ops that still run in a failing room are cut off
        self._sent = 0  # pages
        self._finished: bytes | None = None  # metadata, once the last chunk was posted
        self._failing: Failure | None = None
        self._acks: dict[str, Callable[[], None]] = {}  # by session: those that gave the room up and wait for an answer
        self._timer: Timer | None = None

    # --- the scheduler's thread

    def poll(self) -> KVPoll:
        return self._state

    @property
    def drained(self) -> bool:
        """Whether no write from this room's pages is outstanding and none will start."""
        return self._state.final

    def send(self, pages: Pages, last: bool, metadata: bytes = b"") -> None:
        """Queue the next pages of the room, in order. May be called before the decode has sent its page list."""
        chunk = Chunk(np.array(pages, dtype=np.int32), last, metadata)  # a copy: the caller reuses its array
        self._context.loop.call(lambda: self._push(chunk))

    def abort(self, reason: str = failures.ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self._context.loop.call(lambda: self.fail(Failure(code, reason)))

    def clear(self) -> None:
        """Abort the room unless it is final: the scheduler no longer needs it."""
        if not self._state.final:
            self.abort()

    # --- the manager's thread

    @property
    def age(self) -> float:
        return time.monotonic() - self._created

    @property
    def draining(self) -> bool:
        return self._failing is not None and not self._state.final

    @property
    def peers(self) -> tuple[str, ...]:
        """Endpoints of the decode ranks that announced themselves."""
        return tuple(destination.session.endpoint for destination in tuple(self._destinations.values()))

    @property
    def waiting_for(self) -> str:
        """What the room waits for, as a bootstrap timeout reports it."""
        required = next((d.info.required_dst_info_num for d in self._destinations.values()), 1)
        return (
            f"{len(self._destinations)} of {required} decode ranks sent their page list for room {self.room} "
            f"to this prefill rank ({self._context.endpoint})"
        )

    def open(self) -> None:
        """Start to wait for the room's page lists, up to the bootstrap timeout."""
        self._timer = self._context.loop.later(self._context.config.bootstrap_timeout, self._overdue)

    def _overdue(self) -> None:
        if self._state == KVPoll.BOOTSTRAPPING:
            self._context.warn_once(
                "Some requests timed out when bootstrapping, which means prefill instances fail to receive the KV "
                "indices from the decode instance of this request. SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT sets how "
                "many seconds a prefill waits for them."
            )
            limit = self._context.config.bootstrap_timeout
            self.fail(failures.timed_out(self.room, self.age, limit, KVPoll.BOOTSTRAPPING, self.waiting_for))

    def add(self, session: DecodeSession, info: TransferInfo, said: bool = False) -> None:
        """Take one decode rank's page list; the first one counts. `said`: it was logged when it arrived."""
        known = self._destinations.get(session.id)
        if known is not None:
            log.warning("room=%d duplicate page list from %s ignored", self.room, session.endpoint)
            return
        if self._state >= KVPoll.WAITING_FOR_INPUT:  # chunks may be gone: it would get only the rest
            self._rooms.refuse(info, failures.failure_of(FailureCode.DUPLICATE_ROOM, self._claimed(session)))
            return
        if not said:
            note_page_list(info)
        destination = self._destinations[session.id] = ChunkDestination(session, info, unpack_pages(info.pages))
        session.join(self.room)
        wrong = destination.check()
        if wrong:
            self.fail(failures.failure_of(FailureCode.BAD_PAGES, wrong))
            return
        if len(self._destinations) >= info.required_dst_info_num:
            self.stats = TransferStats(handshake=self.age)
            self._move(KVPoll.WAITING_FOR_INPUT)
            if not said:
                log.info("room=%d is bootstrapped", self.room)
            self._flush()

    def _claimed(self, late: DecodeSession) -> str:
        text = f"room {self.room} on prefill rank {self._context.endpoint} belongs to {', '.join(self.peers)}"
        log.warning("room=%d page list from %s refused: the room has its decode ranks", self.room, late.endpoint)
        return f"{text}; decode {late.endpoint} claims it too: rooms must be unique"

    def _push(self, chunk: Chunk) -> None:
        if self._state.final or self._failing or self._finished is not None:
            return
        self._chunks.append(chunk)
        if self._state >= KVPoll.WAITING_FOR_INPUT:
            self._flush()

    def _flush(self) -> None:
        while self._chunks and not self._failing:
            self._post(self._chunks.pop(0))
        self._conclude()

    def _post(self, chunk: Chunk) -> None:
        part = ChunkInFlight(chunk, time.monotonic(), [])
        self._began = self._began or part.began
        if not self._running:
            self._busy_from = part.began
        self._move(KVPoll.TRANSFERRING, quiet=True)
        first, self._sent = self._sent, self._sent + len(chunk.pages)
        for destination in self._destinations.values():
            if not (self._failing or destination.info.is_dummy):
                self._post_to(destination, part, first)
        if self._failing:
            return
        if chunk.last:
            self._finished = chunk.metadata
        self._rest()
        self._count(len(chunk.pages))
        self._parts.append(part)
        self._note_parts()

    def _rest(self) -> None:
        """Add the time that ops took, if none run any more."""
        if not self._running:
            now = time.monotonic()
            self._moving, self._busy_from = self._moving + now - self._busy_from, now

    def _note_parts(self) -> None:
        while self._parts and self._parts[0].done:
            self._parts.pop(0).note(self.room)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank has posted for the room, to all decode ranks."""
        return sum(destination.nbytes for destination in self._destinations.values())

    def _post_to(self, destination: ChunkDestination, part: ChunkInFlight, first: int) -> None:
        session, chunk = destination.session, part.chunk
        if destination.wrong_length(self._sent, chunk.last):
            text = (
                f"prefill has {self._sent} pages of room {self.room}, decode {session.endpoint} reserved "
                f"{destination.expected}"
            )
            self.fail(failures.failure_of(FailureCode.BAD_PAGES, text))
            return
        try:
            op = destination.post(self._context.transport, chunk.pages, first)
        except TransferError as error:
            self.fail(failures.failure_of(FailureCode.TRANSFER, str(error)))
            return
        part.ops.append(op)
        self._watch(session, op)

    def _watch(self, session: DecodeSession, op: Op) -> None:
        if op.state == OpState.FAILED:
            self._rooms.lost(session, op.error)
        elif op.state == OpState.RUNNING:
            if not self._running:
                self._stuck_at = time.monotonic() + self._context.config.waiting_timeout
            self._running.append(op)
            self._ask_for_help(op)
            self._rooms.watch(self)

    def _ask_for_help(self, op: Op) -> None:
        """Tell the target of a write that is not done at once: it may have to lend its thread."""
        if op.begun and op.peer not in self._helpers:
            self._helpers.add(op.peer)
            self._tell(self._destinations[op.peer], KVPoll.TRANSFERRING)

    @property
    def next_poll_at(self) -> float:
        """When `check` may find something new (monotonic seconds)."""
        soon = time.monotonic() + BUSY_POLL
        limit = self._deadline if self._failing else self._stuck_at
        return min([limit, *(op.due or soon for op in self._running)])

    def check(self) -> bool:
        """Poll the ops that are under way; True while some still are."""
        transport, left, failed = self._context.transport, [], []
        for op in self._running:
            state = transport.poll(op)
            if state == OpState.RUNNING:
                left.append(op)
                self._ask_for_help(op)
            elif state == OpState.FAILED:
                failed.append(op)
        had_some, self._running = bool(self._running), left
        if had_some:
            self._rest()
        for op in failed:  # only now: with nothing else under way, the room can still tell that peer its end
            self._rooms.lost_peer(op.peer, op.error)
        self._note_parts()
        now = time.monotonic()
        if left and now > self._stuck_at:
            text = f"a write into {left[0].peer} did not end within {self._context.config.waiting_timeout:.1f}s"
            self.fail(failures.failure_of(FailureCode.TRANSFER, text))
        if left and self._failing and now > self._deadline:
            self._cut_off()
        self._conclude()
        return bool(self._running)

    def _cut_off(self) -> None:
        """Cancel a failing room's ops that outlived their grace, and cut off the peers so that no write comes late."""
        for op in self._running:
            self._context.transport.release(op)
            self._rooms.lost_peer(op.peer, f"a write did not end within {self._context.config.write_grace:.1f}s")
        self._running = []

    def fail(self, failure: Failure) -> None:
        """Stop the room; the first failure is the one reported."""
        if self._state.final or self._failing:
            return
        self._failing = failure
        self._deadline = time.monotonic() + self._context.config.write_grace
        self._chunks.clear()
        self._conclude()

    def fail_now(self, failure: Failure) -> None:
        """Fail without waiting for running ops: no thread will be left to wait."""
        self.fail(failure)
        self._deadline = 0.0
        self.check()

    def serves(self, session: str) -> bool:
        return session in self._destinations

    def give_up(self, session: str, failure: Failure, acknowledge: Callable[[], None]) -> None:
        """Fail a room that a decode gave up; `acknowledge` once nothing is being written into its pages."""
        self._acks[session] = acknowledge
        self.fail(failure)

    def _conclude(self) -> None:
        if self._state.final or self._running:
            return
        if self._failing:
            self._finish(KVPoll.FAILED)
        elif self._finished is not None:
            self._finish(KVPoll.SUCCESS)

    def _finish(self, state: KVPoll) -> None:
        failure, metadata = self._failing, self._finished or b""
        for destination in self._destinations.values():
            session = destination.session
            session.leave(self.room)
            # A dummy's success means nothing to its decode; what went wrong there fails the whole room.
            if session.id not in self._acks and (failure or not destination.info.is_dummy):
                self._tell(destination, state, failure, metadata if session.speaks else b"")
        self.failure = failure
        if failure is None:
            self._count(0, time.monotonic() - self._began)
        if self._timer is not None:
            self._timer.cancel()
        self._rooms.concluded(self)
        self._move(state)  # last: a reader of the final state may use everything else
        for acknowledge in self._acks.values():
            acknowledge()
        self._report()

    def _report(self) -> None:
        failure, stats = self.failure, self.stats
        if failure is None:
            log.info(
                "room=%d KV transfer done rid='%s' pages=%d bytes=%d seconds=%.6f",
                self.room, self.rid, stats.pages, stats.nbytes, stats.transfer,
            )  # fmt: skip
        else:
            log.info("room=%d sender failed rid='%s' code=%s: %s", self.room, self.rid, failure.code, failure.message)

    def _tell(self, to: ChunkDestination, state: KVPoll, failure: Failure | None = None, metadata: bytes = b"") -> None:
        code, reason = (failure.code, clipped(failure.message)) if failure else ("", "")
        to.session.tell(
            Status(
                room=self.room,
                session=to.session.id,
                generation=to.info.generation,
                status=state,
                prefill_rank=self._prefill_rank,
                code=code,
                reason=reason,
                metadata=metadata if state == KVPoll.SUCCESS else b"",
                nbytes=to.nbytes,
                chunks=to.chunks,
                descriptors=to.descriptors,
                seconds=self._moving,
                checksums=to.checksums if state == KVPoll.SUCCESS else None,
            )
        )

    def _count(self, pages: int, transfer: float = 0.0) -> None:
        old = self.stats
        destinations = self._destinations.values()
        one_page = max(destination.session.room_page_bytes for destination in destinations)
        prefix = max(destination.info.decode_prefix_pages for destination in destinations)
        self.stats = TransferStats(
            pages=old.pages + pages,
            room_nbytes=max(0, old.pages + pages - prefix) * one_page,
            moving=self._moving,
            nbytes=self.nbytes,
            chunks=old.chunks + bool(pages),
            handshake=old.handshake,
            transfer=transfer,
            descriptors=sum(destination.descriptors for destination in destinations),
        )

    def _move(self, to: KVPoll, quiet: bool = False) -> None:
        self._state = self._state.advanced(to)
        if not quiet:
            self._context.wake()


Sender = KvSender | FakeSender
