"""The KV manager of a decode rank: finds prefills by bootstrap address and learns each room's outcome from them."""

from __future__ import annotations

import itertools
import logging
import time
from typing import TYPE_CHECKING

from pdctl.engine.decode.prefill_directory import PrefillDirectory
from pdctl.engine.decode.receiver import KvReceiver, Receiver
from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.kv_frames import AbortAck, Frame, RegisterAck, Status, join_host_port
from pdctl.engine.kv_link.kv_loop import BUSY_POLL
from pdctl.engine.kv_link.kv_manager import KvManager
from pdctl.engine.kv_link.room_state import Failure, FailureCode, FakeReceiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.decode.rank_connection import RankConnection
    from pdctl.engine.kv_link.kv_frames import Link, LinkEvent
    from pdctl.engine.kv_link.kv_manager import DisaggConfig
    from pdctl.engine.kv_link.room_state import ManagerStats
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Transport

log = logging.getLogger("pdctl.engine")


class DecodeManager(KvManager):
    def __init__(
        self,
        config: DisaggConfig,
        transport: Transport,
        geometry: PoolGeometry,
        wake: Callable[[], None],
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        super().__init__(config, transport, geometry, wake, died)
        self._generations = itertools.count(1)
        self._rooms: dict[int, KvReceiver] = {}  # by generation, until drained
        self._active: dict[int, KvReceiver] = {}  # by room, until final
        self._by_session: dict[str, RankConnection] = {}
        self._by_link: dict[Link, RankConnection] = {}
        self._prefills = PrefillDirectory(self.context, self)
        self._helping: set[KvReceiver] = set()

    # --- the scheduler's thread

    def receiver(
        self, room: int, rid: str, bootstrap_host: str, bootstrap_port: int, dp_rank: int | None = None
    ) -> Receiver:
        """Start a room and return its receiver. `dp_rank` is the prefill's, if the request names it."""
        if self.config.is_fake(bootstrap_host):
            return FakeReceiver(room, rid)
        address, generation = join_host_port(bootstrap_host, bootstrap_port), next(self._generations) % (2**31)
        receiver = KvReceiver(room, rid, address, dp_rank, generation, self.context, self, self._prefills)
        if not self.loop.call(lambda: self._open(receiver)):
            receiver.fail(self._end_of_service())
        return receiver

    def stats(self) -> ManagerStats:
        rooms = list(self._rooms.values())
        return self._stats(len(rooms), sum(not room.active for room in rooms), len(self._by_session))

    # --- the manager's thread: rooms

    def _open(self, receiver: KvReceiver) -> None:
        room = receiver.room
        if room in self._active:
            text = f"room {room} is already in use on this decode rank ({self.endpoint}); rooms must be unique"
            receiver.fail(failures.failure_of(FailureCode.DUPLICATE_ROOM, text))
            return
        self._active[room] = receiver
        self._rooms[receiver.generation] = receiver
        log.info("room=%d rid='%s' resolves prefill bootstrap_addr=%s", room, receiver.rid, receiver.address)
        receiver.open()

    def concluded(self, receiver: KvReceiver) -> None:
        self.succeeded += receiver.failure is None
        self.failed += receiver.failure is not None
        self.moved_bytes += receiver.stats.nbytes
        if self._active.get(receiver.room) is receiver:
            del self._active[receiver.room]

    def forget(self, receiver: KvReceiver) -> None:
        """No prefill can write into the room's pages any more."""
        self._rooms.pop(receiver.generation, None)
        self._helping.discard(receiver)

    def help(self, receiver: KvReceiver) -> None:
        """The prefill's write is still running: with some transports it needs this process to make progress."""
        if self.transport.caps.peer_progress:
            self._helping.add(receiver)

    def advance(self) -> float | None:
        if not self._helping:
            return None
        self.transport.progress()
        return time.monotonic() + BUSY_POLL

    # --- the manager's thread: frames and peers

    def on_message(self, message: Frame) -> None:
        if not isinstance(message, RegisterAck | Status | AbortAck):
            self.context.rate.warning("A decode rank does not expect %s frames; ignored", type(message).__name__)
            return
        connection = self._by_session.get(message.session)
        if connection is None:
            log.debug("Ignoring %s of session %s: it has ended", type(message).__name__, message.session)
        elif isinstance(message, RegisterAck):
            connection.on_ack(message)
        else:
            self._dispatch(connection, message)

    def on_poisonous(self, message: Frame, why: str) -> None:
        connection = self._by_session.get(message.session)
        if connection is not None:
            text = f"a {type(message).__name__} frame of prefill {connection.endpoint} cannot be used: {why}"
            connection.end(failures.failure_of(FailureCode.TRANSFER, text))

    def _dispatch(self, connection: RankConnection, message: Status | AbortAck) -> None:
        receiver = self._rooms.get(message.generation)
        if receiver is None or receiver.room != message.room:
            log.debug("Ignoring %s of room %d: it is over here", type(message).__name__, message.room)
        elif not receiver.knows(connection):
            kind, room, address = type(message).__name__, message.room, receiver.address
            self.context.rate.warning(
                "Ignoring %s of room %d from %s: it is %s's", kind, room, connection.endpoint, address
            )
        elif isinstance(message, Status):
            receiver.on_status(connection, message)
        else:
            receiver.on_ack(connection)

    def linked(self, link: Link, connection: RankConnection) -> None:
        self._by_link[link] = connection
        self._by_session[connection.session] = connection

    def unlinked(self, link: Link, connection: RankConnection) -> None:
        self._by_link.pop(link, None)
        self._by_session.pop(connection.session, None)

    def on_link(self, link: Link, event: LinkEvent) -> None:
        connection = self._by_link.get(link)
        if connection is not None:
            connection.on_event(event)

    def on_stop(self) -> None:
        self.on_death()

    @property
    def idle(self) -> bool:
        return not self._rooms

    def on_death(self) -> None:
        self._prefills.close()
        for receiver in list(self._rooms.values()):
            receiver.fail(self._end_of_service())

    def _end_of_service(self) -> Failure:
        return failures.failure_of(FailureCode.MANAGER_DIED, f"the KV manager of decode rank {self.endpoint} has ended")
