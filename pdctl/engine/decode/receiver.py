"""The decode's end of a room: finds the prefill's ranks, announces the pages it reserved, waits for the outcome.

The scheduler's thread calls the public methods; they only queue a call for the manager's thread, which does the work.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.kv_frames import Abort, Status, TransferInfo, clipped, pack_pages, unpack_pages
from pdctl.engine.kv_link.room_state import Failure, FailureCode, FakeReceiver, KVPoll, RoomFailedError, TransferStats
from pdctl.engine.transfer.checksum import ChecksumTransport, Region
from pdctl.engine.transfer.transport import find_layer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pdctl.engine.decode.prefill_directory import PrefillDirectory, Writers
    from pdctl.engine.decode.rank_connection import RankConnection
    from pdctl.engine.kv_link.kv_frames import Checksums
    from pdctl.engine.kv_link.kv_loop import Timer
    from pdctl.engine.kv_link.kv_manager import RankContext
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages
    from pdctl.layout.kv_links import PullTargets

log = logging.getLogger("pdctl.engine")

ABORT_AGAIN = 2.0  # seconds between aborts that are not acknowledged

# Failures the prefill is told about even if the handshake never reached it: it could only wait for its timeout.
TOLD_UNHEARD = (
    FailureCode.MISMATCH.value,
    FailureCode.ABORTED.value,
    FailureCode.RANK_UNREACHABLE.value,
    FailureCode.UNKNOWN_SESSION.value,
)


class DecodeRooms(Protocol):
    """The rooms of a decode rank."""

    def concluded(self, receiver: KvReceiver) -> None:
        """The room is final."""
        ...

    def forget(self, receiver: KvReceiver) -> None:
        """No prefill can write into the room's pages any more."""
        ...

    def help(self, receiver: KvReceiver) -> None:
        """The prefill's write is still running: with some transports it needs this process to make progress."""
        ...


class KvReceiver:
    """After FAILED the pages stay out of use until `drained`: only then can no prefill write into them any more."""

    def __init__(
        self,
        room: int,
        rid: str,
        address: str,
        dp_rank: int | None,
        generation: int,
        context: RankContext,
        rooms: DecodeRooms,
        prefills: PrefillDirectory,
    ) -> None:
        """`dp_rank` is the prefill's DP rank, if the request names it."""
        self.room = room
        self.rid = rid
        self.address = address
        self.dp_rank = dp_rank
        self.failure: Failure | None = None
        self.metadata: bytes | None = None
        self.stats = TransferStats()
        self.generation = generation
        self.connections: tuple[RankConnection, ...] = ()
        self._context = context
        self._rooms = rooms
        self._prefills = prefills
        self._state = KVPoll.BOOTSTRAPPING
        self._created = time.monotonic()
        self._sent_at = 0.0
        self._pages: Pages | None = None
        self._prefix_pages = 0
        self._targets: PullTargets | None = None
        self._writers: set[RankConnection] = set()  # ranks that know our pages and have not reported that they are done
        self._announced: set[RankConnection] = set()
        self._over: set[RankConnection] = set()  # ranks that have sent their final status for the room
        self._arrived: dict[RankConnection, Status] = {}  # the final status of each rank that has written its part
        self._retried: set[str] = set()  # endpoints of ranks that had dropped our registration
        self._timer: Timer | None = None
        self._search: asyncio.Task[None] | None = None  # for the prefill's ranks
        self._drained = False
        self._suspect = False  # the contents of its pages are not what was sent

    # --- the scheduler's thread

    def poll(self) -> KVPoll:
        return self._state

    @property
    def drained(self) -> bool:
        return self._drained

    def send_metadata(self, pages: Pages, prefix_pages: int = 0) -> None:
        """Tell the prefill where the prompt's pages go. Call once, when `poll` returns WAITING_FOR_INPUT.

        The first `prefix_pages` pages of the prompt are already here and are not among `pages`.
        """
        copied = np.array(pages, dtype=np.int32)
        self._context.loop.call(lambda: self._announce(copied, prefix_pages))

    def abort(self, reason: str = failures.ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self._context.loop.call(lambda: self.fail(Failure(code, reason)))

    def clear(self) -> None:
        """The scheduler no longer needs the room: abort it unless it is final."""
        if not self._state.final:
            self.abort()

    # --- the manager's thread

    @property
    def active(self) -> bool:
        return not self._state.final

    @property
    def age(self) -> float:
        return time.monotonic() - self._created

    @property
    def peers(self) -> tuple[str, ...]:
        """Endpoints of the prefill ranks that will write."""
        return tuple(connection.endpoint for connection in self.connections)

    def open(self) -> None:
        """Find the ranks that will write into this room."""
        address = self._prefills.at(self.address)
        known = address.known(self)
        if known is not None:
            self._ready(known)
        else:
            self._search = self._context.loop.spawn(self._find(), self._unfound)

    async def _find(self) -> None:
        try:
            writers = await self._prefills.at(self.address).find(self)
        except RoomFailedError as error:
            self.fail(error.failure)
        else:
            self._ready(writers)

    def _unfound(self, why: str) -> None:
        self.fail(failures.bootstrap_unreachable(self.address, f"its answer cannot be used ({why})"))

    def _ready(self, writers: Writers) -> None:
        """Join the ranks that will write; all of them have accepted our registration."""
        self._search = None
        self.connections = writers.connections
        self._targets = writers.targets
        for connection in self.connections:
            connection.join(self)
        if self._pages is not None:
            self._send()  # the second try of a room whose prefill had dropped our registration
            return
        self.stats = TransferStats(handshake=self.age)
        self._move(KVPoll.WAITING_FOR_INPUT)
        log.info("room=%d handshake with %s done rid='%s' after=%.6f", self.room, self.address, self.rid, self.age)

    def _announce(self, pages: Pages, prefix_pages: int) -> None:
        if not self.active or self._pages is not None:
            return
        self._pages, self._prefix_pages = pages, prefix_pages
        self._timer = self._context.loop.later(self._context.config.waiting_timeout, self._overdue)
        self._send()

    def _send(self) -> None:
        if self._pages is None or self._targets is None:
            return
        self._sent_at = time.monotonic()
        pages, endpoint = pack_pages(self._pages), self._context.endpoint
        for connection in self.connections:
            if connection in self._announced:
                continue  # only another rank had dropped our registration
            self._announced.add(connection)
            dummy = connection.key.tp in self._targets.dummy  # it writes nothing, and sends nothing if all goes well
            info = TransferInfo(
                self.room,
                connection.session,
                endpoint,
                self.generation,
                b"" if dummy else pages,
                self._targets.required_dst_info_num,
                dummy,
                self._prefix_pages,
            )
            if not dummy:
                self._writers.add(connection)
            log.info("Sending to prefill server with bootstrap room %d is_dummy=%s", self.room, dummy)
            if not connection.send(info):
                text = f"send_metadata to prefill {connection.endpoint} failed: it has stopped reading"
                self.fail(failures.failure_of(FailureCode.RANK_UNREACHABLE, text))
                return
        to = ",".join(connection.endpoint for connection in self.connections)
        log.info("room=%d rid='%s' announced pages=%d to=%s", self.room, self.rid, len(self._pages), to)

    def _overdue(self) -> None:
        if not self.active:
            return
        silent = ", ".join(c.endpoint for c in self.connections if c in self._writers) or "no prefill rank"
        missing = f"no transfer-done signal from {silent} (bootstrap_addr: {self.address})"
        seconds = time.monotonic() - self._sent_at
        self._context.warn_once(
            "Some requests fail to receive KV Cache transfer done signal after bootstrapping. "
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT sets how many seconds a decode waits for it."
        )
        suspects = list(self._writers)
        limit = self._context.config.waiting_timeout
        self.fail(failures.timed_out(self.room, seconds, limit, KVPoll.WAITING_FOR_INPUT, missing))
        for connection in suspects:
            connection.retire()

    def knows(self, connection: RankConnection) -> bool:
        """Return whether that rank takes, or took, part in this room; frames from any other are ignored."""
        return connection in self.connections or connection in self._announced

    def _unbelievable(self, connection: RankConnection, status: Status) -> str:
        """Return why a reported success cannot be true; empty if it can."""
        if self._pages is None or self._targets is None or connection not in self._announced:
            return "it was sent no page list"
        if connection.key.tp in self._targets.dummy:
            return "it was given nothing to write"
        most = len(self._pages) * self._context.geometry.page_bytes
        return f"{status.nbytes} bytes into pages of {most}" if status.nbytes > most else ""

    def on_status(self, connection: RankConnection, status: Status) -> None:
        """Handle a prefill rank's report: the room's outcome, or a request for help with a transfer under way."""
        state = KVPoll(status.status)
        if state == KVPoll.TRANSFERRING and self.active:
            self._move(state)
            self._rooms.help(self)
        elif state.final:
            self._writers.discard(connection)
            self._over.add(connection)
            if not self.active:
                self._check_drained()
            elif state == KVPoll.SUCCESS and (wrong := self._unbelievable(connection, status)):
                text = f"prefill {connection.endpoint} says that it has written room {self.room}: {wrong}"
                self.fail(failures.failure_of(FailureCode.TRANSFER, text))
            elif state == KVPoll.SUCCESS:
                self._verify(connection, status)
            else:
                self._refused(connection, status)

    def _verify(self, connection: RankConnection, status: Status) -> None:
        """Compare checksums if both sides have them enabled, off the loop's thread: reading the pages takes time."""
        context, pages, sent = self._context, self._pages, status.checksums
        checker = find_layer(context.transport, ChecksumTransport)
        if checker is None or pages is None or sent is None:
            if checker is not None and status.nbytes:
                context.warn_once(
                    f"KV checksum skipped: prefill {self.address} sends none (--disaggregation-enable-kv-checksum is "
                    "not set there); its requests are admitted unverified."
                )
            self._arrive(connection, status)
            return
        compare = functools.partial(wrong_page, checker, context.geometry, pages, sent)
        context.loop.spawn(self._compare(compare, connection, status), self._unverified)

    async def _compare(self, compare: Callable[[], str], connection: RankConnection, status: Status) -> None:
        wrong = await self._context.loop.compute(compare)
        if not self.active:
            return
        if wrong:
            # No rank is known to be writing, and yet one did: nothing else may use these pages for a while.
            self._suspect = True
            text = f"{wrong} (room {self.room}, from {connection.endpoint})"
            self.fail(failures.failure_of(FailureCode.CHECKSUM, text))
        else:
            self._arrive(connection, status)

    def _unverified(self, why: str) -> None:
        self._suspect = True
        self.fail(
            failures.failure_of(FailureCode.CHECKSUM, f"the checksums of room {self.room} cannot be compared: {why}")
        )

    def _arrive(self, connection: RankConnection, status: Status) -> None:
        self._arrived[connection] = status
        self.metadata = status.metadata or self.metadata
        ranks = {one.prefill_rank for one in self._arrived.values()}
        if self._targets is None or len(ranks) < self._targets.required_prefill_response_num:
            return
        self._count()
        self.metadata = self.metadata or b""
        self._end(KVPoll.SUCCESS)
        stats = self.stats
        log.info(
            "room=%d KV cache arrived rid='%s' pages=%d bytes=%d seconds=%.6f from=%s",
            self.room, self.rid, stats.pages, stats.nbytes, stats.transfer, self.address,
        )  # fmt: skip

    def _count(self) -> None:
        """Add up what the prefill ranks report they wrote here; together it is our part of every page."""
        words = self._arrived.values()
        pages = len(self._pages) if self._pages is not None else 0
        self.stats = replace(
            self.stats,
            pages=pages,
            room_nbytes=pages * self._context.room_page_bytes,
            nbytes=sum(status.nbytes for status in words),
            chunks=max(status.chunks for status in words),
            descriptors=sum(status.descriptors for status in words),
            moving=max(status.seconds for status in words),
            transfer=time.monotonic() - self._sent_at,
        )

    def _refused(self, connection: RankConnection, status: Status) -> None:
        if status.code == FailureCode.UNKNOWN_SESSION.value and connection.endpoint not in self._retried:
            # The prefill dropped our registration (it saw the connection break): register and announce again.
            self._retried.add(connection.endpoint)
            log.info("room=%d registers again with %s: %s", self.room, connection.endpoint, status.reason)
            self._leave()
            self._over.discard(connection)
            connection.retire()
            self.open()
            return
        self.fail(Failure(status.code or FailureCode.TRANSFER.value, status.reason or "the prefill gave no reason"))

    def on_ack(self, connection: RankConnection) -> None:
        self._writers.discard(connection)
        self._check_drained()

    def on_lost(self, connection: RankConnection, failure: Failure) -> None:
        """The connection is gone. A process on this host is then dead; one on another host may still be writing."""
        if connection.same_host:
            self._writers.discard(connection)
        self.fail(failure)
        self._check_drained()

    def fail(self, failure: Failure) -> None:
        """Fail the room and ask ranks that may still write to stop. Only the first failure is kept."""
        if not self.active:
            return
        self.failure = failure
        for connection in self.connections:
            self._abort_at(connection, failure)
        unheard = not self.connections or failure.code == FailureCode.UNKNOWN_SESSION.value
        if unheard and failure.code in TOLD_UNHEARD:
            self._prefills.at(self.address).give_notice(self, failure)
        log.info("room=%d receiver failed rid='%s' code=%s: %s", self.room, self.rid, failure.code, failure.message)
        self._end(KVPoll.FAILED)

    def _abort_at(self, connection: RankConnection, failure: Failure) -> None:
        """Send an abort. Ranks that know our pages answer when they have stopped; dummies and the others need not."""
        waits = connection in self._writers
        if connection not in self._over and connection.send(
            self.abort_frame(connection.session, failure, notice=not waits)
        ):
            endpoint = connection.endpoint.removeprefix("tcp://")
            log.info("Sent abort notification for room %d to %s", self.room, endpoint)

    def abort_frame(self, session: str, failure: Failure, notice: bool) -> Abort:
        reason = clipped(failure.message)
        return Abort(self.room, session, self._context.endpoint, self.generation, reason, failure.code, notice)

    def _end(self, state: KVPoll) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._search is not None:
            self._search.cancel()
        self._drained = not self._writers and not self._suspect
        self._rooms.concluded(self)
        self._state = self._state.advanced(state)  # last: a thread that sees the state may read everything else
        if self._drained:
            self._release()
        else:
            self._timer = self._context.loop.later(self._context.config.drain_grace, self._expire)
            self._context.loop.later(ABORT_AGAIN, self._resend_aborts)
        self._context.wake()

    def _resend_aborts(self) -> None:
        """Repeat the aborts: one, or its answer, may have been lost, and the pages depend on it."""
        if self._drained or self.failure is None:
            return
        for connection in self._writers:
            connection.send(self.abort_frame(connection.session, self.failure, notice=False))
        self._context.loop.later(ABORT_AGAIN, self._resend_aborts)

    def _check_drained(self) -> None:
        if self._state.final and not self._drained and not self._writers and not self._suspect:
            self._end_draining()

    def _expire(self) -> None:
        if not self._drained:
            log.warning(
                "Deferred KV release for room %d timed out after %.1fs: no answer from %s",
                self.room, self._context.config.drain_grace,
                ", ".join(c.endpoint for c in self._writers or self.connections),
            )  # fmt: skip
            self._end_draining()

    def _end_draining(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._writers.clear()
        self._drained = True
        self._release()
        self._context.wake()

    def _release(self) -> None:
        self._leave()
        self._rooms.forget(self)

    def _leave(self) -> None:
        for connection in self.connections:
            connection.leave(self)

    def _move(self, to: KVPoll) -> None:
        self._state = self._state.advanced(to)
        self._context.wake()


def wrong_page(checker: ChecksumTransport, geometry: PoolGeometry, pages: Pages, sent: Checksums) -> str:
    """Return why our `pages` are not what was sent, naming the first bad one on both sides; empty if they match."""
    region = Region(sent.first_slab, sent.slabs, sent.first_head, sent.heads)
    if not region.inside(geometry) or len(sent.sums) != 4 * len(pages) or len(sent.pages) != len(sent.sums):
        return f"KV checksums do not fit: {len(sent.sums) // 4} of them for {len(pages)} pages, {region}"
    found = checker.compare(geometry, region, pages, sent.sums)
    if found is None:
        return ""
    theirs, ours = int(unpack_pages(sent.pages)[found.place]), int(pages[found.place])
    return (
        f"KV checksum mismatch on page {found.place + 1} of {len(pages)}: prefill page {theirs} was sent with "
        f"{found.sent:#010x}, decode page {ours} holds {found.found:#010x}"
    )


Receiver = KvReceiver | FakeReceiver
