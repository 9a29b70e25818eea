"""The prefill's end of a room: waits for the decode's page list, then sends chunks, the metadata with the last.

The scheduler's thread calls the public methods; they only leave word for the manager's thread, which does the rest.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.disaggregation import failure as failures
from pdctl.engine.disaggregation.failure import Failure, FailureCode
from pdctl.engine.disaggregation.fake_room import FakeSender
from pdctl.engine.disaggregation.handshake import Status, TransferInfo, clipped, unpack_pages
from pdctl.engine.disaggregation.state import KVPoll, TransferStats
from pdctl.engine.transfer.base import Op, OpState, TransferError
from pdctl.engine.transfer.pages import require_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.disaggregation.loop import Timer
    from pdctl.engine.disaggregation.prefill import PrefillManager
    from pdctl.engine.disaggregation.session import Session
    from pdctl.engine.transfer.base import Pages

__all__ = ["FakeSender", "KvSender", "Sender"]

log = logging.getLogger("pdctl.engine")


@dataclass(frozen=True, slots=True)
class Chunk:
    pages: Pages
    last: bool
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Destination:
    """One decode rank's page list for the room. A dummy takes part in the count and gets nothing."""

    session: Session
    info: TransferInfo
    pages: Pages


def note_page_list(info: TransferInfo) -> None:
    """sglang 0.5.3 to 0.5.23, nixl (there at debug level)."""
    required = info.required_dst_info_num
    log.info("got info room=%d agent_name='%s' required_dst_info_num=%d", info.room, info.session, required)


class KvSender:
    """`poll` is FAILED only once nothing of the room is being written any more: the pages may be freed then."""

    def __init__(self, room: int, rid: str, manager: PrefillManager) -> None:
        self.room = room
        self.rid = rid
        self.failure: Failure | None = None
        self.stats = TransferStats()
        self._manager = manager
        self._state = KVPoll.BOOTSTRAPPING
        self._created = time.monotonic()
        self._began = 0.0
        self._destinations: dict[str, Destination] = {}
        self._chunks: list[Chunk] = []
        self._running: list[Op] = []
        self._helpers: set[str] = set()  # sessions that know of running ops
        self._stuck_at = 0.0  # when running ops fail the room
        self._deadline = 0.0  # when running ops of a failing room are cut off
        self._sent = 0  # pages
        self._finished: bytes | None = None  # metadata, once the last chunk was posted
        self._failing: Failure | None = None
        self._acks: dict[str, Callable[[], None]] = {}  # by session: who gave the room up and wants to know
        self.timer: Timer | None = None

    # --- the scheduler's thread

    def poll(self) -> KVPoll:
        return self._state

    @property
    def settled(self) -> bool:
        """No write from this room's pages is outstanding, nor will one start."""
        return self._state.final

    def send(self, pages: Pages, last: bool, metadata: bytes = b"") -> None:
        """Queue the next pages of the room, in order. May be called before the decode has sent its page list."""
        chunk = Chunk(np.array(pages, dtype=np.int32), last, metadata)  # a copy: the caller reuses its array
        self._manager.loop.call(lambda: self._push(chunk))

    def abort(self, reason: str = failures.ABORTED) -> None:
        self._manager.loop.call(lambda: self.fail(failures.aborted(reason)))

    def clear(self) -> None:
        """The room is of no more use to the scheduler: abort it unless it is final."""
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
    def waiting_for(self) -> str:
        """What a bootstrap timeout has to name."""
        required = next((d.info.required_dst_info_num for d in self._destinations.values()), 1)
        return (
            f"{len(self._destinations)} of {required} decode ranks sent their page list for room {self.room} "
            f"to this prefill rank ({self._manager.endpoint})"
        )

    def add(self, session: Session, info: TransferInfo, said: bool = False) -> None:
        """Take one decode rank's page list; the first one counts. `said`: it was logged when it arrived."""
        known = self._destinations.get(session.id)
        if known is not None:
            log.warning("room=%d duplicate page list from %s ignored", self.room, session.endpoint)
            return
        pages = unpack_pages(info.pages)
        if not said:
            note_page_list(info)
        self._destinations[session.id] = Destination(session, info, pages)
        session.rooms.add(self.room)
        try:
            require_pages(f"page list of {session.endpoint}", pages, session.plan.remote.num_pages)
        except TransferError as error:
            self.fail(failures.of(FailureCode.BAD_PAGES, str(error)))
            return
        if len(self._destinations) >= info.required_dst_info_num:
            self.stats = TransferStats(handshake=self.age)
            self._move(KVPoll.WAITING_FOR_INPUT)
            if not said:
                log.info("room=%d is bootstrapped", self.room)
            self._flush()

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
        began = time.monotonic()
        self._began = self._began or began
        self._move(KVPoll.TRANSFERRING, quiet=True)
        first, self._sent = self._sent, self._sent + len(chunk.pages)
        moved = 0
        for destination in self._destinations.values():
            if not destination.info.is_dummy:
                moved += self._post_to(destination, chunk, first)
        if self._failing:
            return
        if chunk.last:
            self._finished = chunk.metadata
        spent = time.monotonic() - began
        self._count(len(chunk.pages), moved)
        log.info(
            "room=%d sent chunk pages=%d last=%s bytes=%d seconds=%.6f",
            self.room, len(chunk.pages), chunk.last, moved, spent,
        )  # fmt: skip

    def _post_to(self, destination: Destination, chunk: Chunk, first: int) -> int:
        """Bytes posted to one decode rank; 0 when the room fails instead."""
        session, reserved = destination.session, len(destination.pages)
        if self._sent > reserved or (chunk.last and self._sent != reserved):
            text = f"prefill has {self._sent} pages of room {self.room}, decode {session.endpoint} reserved {reserved}"
            self.fail(failures.of(FailureCode.BAD_PAGES, text))
            return 0
        target = destination.pages[first : self._sent]
        try:
            op = self._manager.transport.post(session.plan, chunk.pages, target)
        except TransferError as error:
            self.fail(failures.of(FailureCode.TRANSFER, str(error)))
            return 0
        self._watch(session, op)
        return op.nbytes

    def _watch(self, session: Session, op: Op) -> None:
        if op.state == OpState.FAILED:
            self._manager.lost(session, op.error)
        elif op.state == OpState.RUNNING:
            if not self._running:
                self._stuck_at = time.monotonic() + self._manager.config.waiting_timeout
            if session.id not in self._helpers:
                self._helpers.add(session.id)
                self._tell(session, KVPoll.TRANSFERRING)  # the target may have to lend its thread
            self._running.append(op)
            self._manager.watch(self)

    def check(self) -> bool:
        """Poll the ops that are under way; True while some still are."""
        transport, left = self._manager.transport, []
        for op in self._running:
            state = transport.poll(op)
            if state == OpState.RUNNING:
                left.append(op)
            elif state == OpState.FAILED:
                self._manager.lost_peer(op.peer, op.error)
        self._running = left
        now = time.monotonic()
        if left and now > self._stuck_at:
            text = f"a write into {left[0].peer} did not end within {self._manager.config.waiting_timeout:.1f}s"
            self.fail(failures.of(FailureCode.TRANSFER, text))
        if left and self._failing and now > self._deadline:
            self._cut_off()
        self._conclude()
        return bool(self._running)

    def _cut_off(self) -> None:
        """A failing room's ops outlived their grace: cancel them, and cut the peers off so that nothing comes late."""
        for op in self._running:
            self._manager.transport.release(op)
            self._manager.lost_peer(op.peer, f"a write did not end within {self._manager.config.settle_grace:.1f}s")
        self._running = []

    def fail(self, failure: Failure) -> None:
        """Stop the room; the first failure is the one that is told."""
        if self._state.final or self._failing:
            return
        self._failing = failure
        self._deadline = time.monotonic() + self._manager.config.settle_grace
        self._chunks.clear()
        self._conclude()

    def condemn(self, failure: Failure) -> None:
        """Fail without waiting for running ops: there will be no thread to wait on."""
        self.fail(failure)
        self._deadline = 0.0
        self.check()

    def serves(self, session: str) -> bool:
        return session in self._destinations

    def give_up(self, session: str, acknowledge: Callable[[], None]) -> None:
        """A decode gave the room up: `acknowledge` as soon as nothing is being written into its pages."""
        self._acks[session] = acknowledge
        self.fail(failures.aborted(failures.ABORTED_BY_DECODE))

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
            session.rooms.discard(self.room)
            if session.id not in self._acks and not destination.info.is_dummy:
                self._tell(session, state, failure, metadata)
        self.failure = failure
        if failure is None:
            self._count(0, 0, time.monotonic() - self._began)
        if self.timer is not None:
            self.timer.cancel()
        self._manager.concluded(self)
        self._move(state)  # last: whoever sees the state may ask for everything else
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

    def _tell(self, session: Session, state: KVPoll, failure: Failure | None = None, metadata: bytes = b"") -> None:
        code, reason = (failure.code, clipped(failure.message)) if failure else ("", "")
        generation = self._destinations[session.id].info.generation
        if state != KVPoll.SUCCESS:
            metadata = b""
        rank = self._manager.prefill_rank
        session.tell(Status(self.room, session.id, generation, state, rank, code, reason, metadata))

    def _count(self, pages: int, nbytes: int, transfer: float = 0.0) -> None:
        old = self.stats
        chunks = old.chunks + bool(pages)
        self.stats = TransferStats(old.pages + pages, old.nbytes + nbytes, chunks, old.handshake, transfer)

    def _move(self, to: KVPoll, quiet: bool = False) -> None:
        self._state = self._state.advanced(to)
        if not quiet:
            self._manager.wake()


Sender = KvSender | FakeSender
