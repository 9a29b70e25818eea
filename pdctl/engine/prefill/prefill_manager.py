"""The KV manager of a prefill rank: decodes register here, announce rooms, and are sent pages."""

from __future__ import annotations

import functools
import logging
import uuid
from typing import TYPE_CHECKING

from pdctl.engine.drill.kv_faults import with_faults
from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.bootstrap_client import BootstrapError, RoomRank, leader_key
from pdctl.engine.kv_link.kv_frames import (
    PROTOCOL,
    Abort,
    AbortAck,
    Frame,
    Link,
    LinkError,
    LinkEvent,
    RegisterAck,
    RegisterKvArgs,
    Status,
    TransferInfo,
    Unregister,
    clipped,
    codec,
    hello,
    other_version,
)
from pdctl.engine.kv_link.kv_manager import KvManager, RoomNotices
from pdctl.engine.kv_link.room_state import Failure, FailureCode, FakeSender, KVPoll, ManagerStats
from pdctl.engine.prefill.decode_sessions import DecodeSession, SessionTable, note_page_list, open_session
from pdctl.engine.prefill.registration import Registration, server_address
from pdctl.engine.prefill.sender import KvSender, Sender
from pdctl.engine.prefill.unclaimed_rooms import EndedRooms, UnclaimedPageLists
from pdctl.engine.transfer.workers import Workers, threads

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_manager import DisaggConfig
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Transport

log = logging.getLogger("pdctl.engine")

QUERY_DP_RANK = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"


class PrefillManager(KvManager):
    def __init__(
        self,
        config: DisaggConfig,
        transport: Transport,
        geometry: PoolGeometry,
        wake: Callable[[], None],
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        super().__init__(config, transport, geometry, wake, died)
        self._rooms: dict[int, KvSender] = {}
        self._sessions = SessionTable()
        ttl = min(config.unclaimed_ttl, config.bootstrap_timeout) if config.tell_unclaimed else config.unclaimed_ttl
        self._unclaimed = UnclaimedPageLists(self.loop, ttl, self._drop_unclaimed)
        self._watched: set[KvSender] = set()
        self._ended = EndedRooms(config.refusal_ttl)
        self._notices = RoomNotices(self.loop, server_address(config))
        self.instance = uuid.uuid4().hex  # distinguishes this process from an earlier one at the same address
        self._registration = Registration(self.loop, config, self.instance, wake)

    def _prepared(self, transport: Transport, config: DisaggConfig) -> Transport:
        faulty = with_faults(transport, config.attn_tp_rank, config.faults)
        self._workers = Workers(faulty, self.loop, threads(config.transfer_threads))
        return self._workers

    # --- the scheduler's thread

    @property
    def registered(self) -> threading.Event:
        return self._registration.done

    @property
    def registration_failure(self) -> str:
        """Why this rank will never be registered at the bootstrap server; empty while it still may."""
        return self._registration.failure

    @property
    def registration_error(self) -> BootstrapError | None:
        """That of the latest attempt to register; None if none has failed."""
        return self._registration.error

    @property
    def prefill_rank(self) -> int:
        """sglang 0.5.23: attn_tp_rank * (pp_size * attn_cp_size) + pp_rank * attn_cp_size + attn_cp_rank."""
        return self.config.attn_tp_rank * self.config.pp_size + self.config.pp_rank

    def start(self) -> None:
        super().start()
        self.loop.call(self._registration.begin)

    def sender(self, room: int, rid: str, bootstrap_host: str = "", dp_rank: int | None = None) -> Sender:
        """Return the room's sender. `dp_rank`: the prefill's, if the request names it, so that the decode knows it."""
        if self.config.is_fake(bootstrap_host):
            return FakeSender(room, rid)
        sender = KvSender(room, rid, self.prefill_rank, self.context, self)
        if not self.loop.call(lambda: self._open(sender, dp_rank)):
            sender.fail_now(self._end_of_service())
        return sender

    def _detach(self) -> bool:
        for session in self._sessions.all():
            self._workers.drop_peer(session.id)
        return self._workers.detach()

    def stats(self) -> ManagerStats:
        rooms = list(self._rooms.values())
        return self._stats(len(rooms), sum(room.draining for room in rooms), len(self._sessions))

    # --- the manager's thread: rooms

    def _open(self, sender: KvSender, dp_rank: int | None) -> None:
        room = sender.room
        if room in self._rooms:
            text = f"room {room} is already in use on this prefill rank ({self.endpoint}); rooms must be unique"
            sender.fail(failures.failure_of(FailureCode.DUPLICATE_ROOM, text))
            return
        self._rooms[room] = sender
        given_up = self._ended.reopen(room)
        log.info("room=%d rid='%s' waits for the decode's page list on %s", room, sender.rid, self.endpoint)
        refused = self._conflict(room, dp_rank) or given_up
        if refused is not None:
            sender.fail(refused)
            for info in self._unclaimed.adopt(room):
                self.refuse(info, refused)
            return
        self._announce_dp_rank(room, dp_rank)
        sender.open()
        for info in self._unclaimed.adopt(room):
            self._hand_over(sender, info, said=True)

    def _conflict(self, room: int, named: int | None) -> Failure | None:
        """Return a failure if the decode looks for the room elsewhere: it asks the named DP rank, or room % dp_size."""
        config = self.config
        if named is not None:
            due, why = named, f"disagg_prefill_dp_rank of bootstrap_room {room} is {named}."
        elif config.follows_room and not config.query_dp_rank:
            due = room % config.dp_groups
            why = f"bootstrap_room {room} implies dp_rank {due}. Set {QUERY_DP_RANK}=1 on both prefill and decode."
        else:
            return None
        if due == config.dp_group:
            return None
        text = f"follow_bootstrap_room conflict: dispatched to dp_rank {config.dp_group} but {why}"
        failure = failures.failure_of(FailureCode.DP_CONFLICT, text)
        # The page list goes to that other DP rank, which would wait for the request that is here.
        notice = Abort(room, self.instance, self.endpoint, 0, text, failure.code, notice=True)
        self._notices.give(leader_key(due), notice)
        return failure

    def _announce_dp_rank(self, room: int, named: int | None) -> None:
        """Tell the bootstrap server a DP rank that cannot be computed from the room (sglang 0.5.13+)."""
        config = self.config
        computed = config.follows_room and not config.query_dp_rank
        if config.dp_groups == 1 or computed or named is not None:
            return
        self.loop.spawn(self._register_dp_rank(room), lambda why: _not_announced(room, why))

    async def _register_dp_rank(self, room: int) -> None:
        try:
            row = RoomRank(room, self.config.dp_group)
            await self.loop.bootstrap.register_dp_rank(server_address(self.config), row)
        except BootstrapError as error:
            _not_announced(room, error.logged)

    def concluded(self, sender: KvSender) -> None:
        """Record how a room ended, for frames about it that are still on their way."""
        self.succeeded += sender.failure is None
        self.failed += sender.failure is not None
        self.moved_bytes += sender.stats.nbytes
        self._watched.discard(sender)
        if self._rooms.get(sender.room) is sender:
            del self._rooms[sender.room]
            self._ended.conclude(sender.room, sender.failure)

    def watch(self, sender: KvSender) -> None:
        self._watched.add(sender)

    def advance(self) -> float | None:
        for sender in list(self._watched):
            if not sender.check():
                self._watched.discard(sender)
        return min((sender.next_poll_at for sender in self._watched), default=None)

    # --- the manager's thread: frames

    def on_message(self, message: Frame) -> None:
        if isinstance(message, RegisterKvArgs):
            self._register(message)
        elif isinstance(message, TransferInfo):
            self._transfer_info(message)
        elif isinstance(message, Abort):
            self._abort(message)
        elif isinstance(message, Unregister):
            self._unregister(message.session)
        else:
            self.context.rate.warning("A prefill rank does not expect %s frames; ignored", type(message).__name__)

    def on_unreadable(self, frame: bytes, why: str) -> None:
        """Tell a decode of another version why it is not served; otherwise it would wait for an answer."""
        unread = hello(frame)
        if unread is not None:
            reason = other_version(unread.protocol) if unread.protocol != PROTOCOL else clipped(why)
            self.context.rate.error("Refused decode session %s (%s): %s", unread.session, unread.endpoint, reason)
            code = FailureCode.MISMATCH.value
            answer = RegisterAck(
                unread.session, self.endpoint, self.context.host, accepted=False, reason=reason, code=code
            )
            self._reply(unread.session, unread.endpoint, answer)

    def on_poisonous(self, message: Frame, why: str) -> None:
        known = self._sessions.get(message.session)
        if known is not None:
            self.lost(known, f"its {type(message).__name__} frame cannot be used: {why}", linger=1.0)
        elif isinstance(message, RegisterKvArgs):
            self.transport.drop_peer(message.session)
            text = clipped(f"this registration cannot be used: {why}")
            code = FailureCode.MISMATCH.value
            answer = RegisterAck(
                message.session, self.endpoint, self.context.host, accepted=False, reason=text, code=code
            )
            self._reply(message.session, message.endpoint, answer)

    def _register(self, message: RegisterKvArgs) -> None:
        self._unregister(message.session)
        session = open_session(self.context, self.instance, self.make_room, message)
        if session is not None:
            self._sessions.add(session)

    def make_room(self, endpoint: str) -> str:
        """Evict an idle session if one more of `endpoint` does not fit; return why it does not if none is idle."""
        return self._sessions.make_room(
            endpoint, lambda one: not (one.rooms or self._unclaimed.of(one.id)), self._evict
        )

    def _evict(self, session: DecodeSession) -> None:
        log.info("Decode session %s (%s) is idle and leaves for another", session.id, session.endpoint)
        self._sessions.pop(session.id)
        self._end(session, "it was idle, and its place was needed", linger=0.0)

    def _unregister(self, session_id: str) -> None:
        session = self._sessions.pop(session_id)
        if session is not None:
            self._end(session, "it gave the connection up", linger=1.0 if session.rooms else 0.0)

    def _transfer_info(self, info: TransferInfo) -> None:
        session = self._sessions.use(info.session)
        if session is None:
            text = f"decode session {info.session} is not registered with prefill rank {self.endpoint}"
            self.refuse(info, failures.failure_of(FailureCode.UNKNOWN_SESSION, text))
            return
        if len(info.pages) % 4:
            self.refuse(
                info, failures.failure_of(FailureCode.BAD_PAGES, f"{len(info.pages)} bytes are not whole page ids")
            )
            return
        if len(info.pages) // 4 > session.num_pages:
            text = f"{len(info.pages) // 4} pages are more than the decode's pool of {session.num_pages} has"
            self.refuse(info, failures.failure_of(FailureCode.BAD_PAGES, text))
            return
        sender = self._rooms.get(info.room)
        if sender is not None:
            self._hand_over(sender, info)
            return
        refused = self._ended.refusal(info.room)
        if refused is not None and refused.code != FailureCode.ABORTED.value:
            self.refuse(info, refused)
            return
        ended = self._ended.concluded(info.room)
        if ended is not None and ended.failure is not None:
            text = f"room {info.room} already failed on prefill rank {self.endpoint}: {ended.failure.message}"
            self.refuse(info, Failure(ended.failure.code, text))
            return
        # SGLang's lines for the arrival of any page list: if the request went to another prefill than its page list,
        # they are the only trace of it here.
        note_page_list(info)
        log.info("room=%d page list from %s came before its request", info.room, info.endpoint)
        if self._unclaimed.keep(info) >= info.required_dst_info_num:
            log.info("room=%d is bootstrapped", info.room)

    def _hand_over(self, sender: KvSender, info: TransferInfo, said: bool = False) -> None:
        session = self._sessions.get(info.session)
        if sender.failure is not None:
            self.refuse(info, sender.failure)
        elif session is not None:
            sender.add(session, info, said)

    def _drop_unclaimed(self, info: TransferInfo, why: str) -> None:
        text = (
            f"prefill rank {self.endpoint} (bootstrap server {server_address(self.config)}) has no request with room "
            f"{info.room}: {why}; was the request routed to another prefill than its bootstrap address says?"
        )
        log.warning("room=%d no request for it came here: %s", info.room, text)
        if self.config.tell_unclaimed:
            self.refuse(info, failures.failure_of(FailureCode.UNKNOWN_ROOM, text))

    def refuse(self, info: TransferInfo, failure: Failure) -> None:
        rank, reason = self.prefill_rank, clipped(failure.message)
        status = Status(info.room, info.session, info.generation, KVPoll.FAILED, rank, failure.code, reason)
        self._reply(info.session, info.endpoint, status)

    def _reply(self, session_id: str, endpoint: str, frame: Frame) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.tell(frame)
            return
        try:
            self.loop.send_once(endpoint, codec.encode(frame))
        except LinkError as error:
            self.context.rate.warning("Cannot answer decode session %s: %s", session_id, error)

    def _abort(self, message: Abort) -> None:
        """Acknowledge at once if the room is done or unknown, otherwise when it has drained (sglang 0.5.23)."""
        ack = AbortAck(message.room, message.session, message.generation, self.prefill_rank)
        acknowledge = functools.partial(self._reply, message.session, message.endpoint, ack)
        failure = failures.given_up(message.code, message.reason)
        sender = self._rooms.get(message.room)
        serves = sender is not None and sender.serves(message.session)
        waits = sender is not None and sender.poll() == KVPoll.BOOTSTRAPPING  # for a decode that has given up
        known = self._unclaimed.withdraw(message.room, message.session) or serves or waits
        what = "marked as Failed" if known else "ignoring (already completed or unknown)"
        log.info("Received abort notification for room %d, %s", message.room, what)
        if sender is not None and serves:
            sender.give_up(message.session, failure, acknowledge)
            return
        if sender is not None and waits:
            sender.fail(failure)
        elif sender is None and self._ended.concluded(message.room) is None:
            self._ended.give_up(message.room, failure)
            for info in self._unclaimed.adopt(message.room):
                self.refuse(info, failure)
        if not message.notice:
            acknowledge()

    # --- the manager's thread: peers

    def on_link(self, link: Link, event: LinkEvent) -> None:
        if event == LinkEvent.UP:
            return
        session = self._sessions.by_link(link)
        if session is not None:
            self.lost(session, event.value)

    def lost_peer(self, peer: str, detail: str) -> None:
        session = self._sessions.get(peer)
        if session is not None:
            self.lost(session, detail, linger=1.0)  # the decode may be alive although its link is not

    def lost(self, session: DecodeSession, detail: str, linger: float = 0.0) -> None:
        """Drop a decode rank that is gone: only its rooms fail, and it may register again."""
        if self._sessions.pop(session.id) is None:
            return
        log.info("Decode rank %s: %s; %d rooms affected", session.endpoint, detail, len(session.rooms))
        if session.rooms:
            log.error("DecodeSession %s failed.", session.id)
        self._end(session, detail, linger)

    def _end(self, session: DecodeSession, detail: str, linger: float) -> None:
        failure = failures.decode_lost(session.id, session.endpoint, detail)
        self._unclaimed.drop_session(session.id)
        for room in list(session.rooms):
            self._rooms[room].fail(failure)
        self.loop.drop(session.link, linger)
        self.transport.drop_peer(session.id)

    def on_stop(self) -> None:
        for sender in list(self._rooms.values()):
            sender.fail(self._end_of_service())

    @property
    def idle(self) -> bool:
        return not self._rooms

    def on_death(self) -> None:
        for sender in list(self._rooms.values()):
            sender.fail_now(self._end_of_service())

    def _end_of_service(self) -> Failure:
        return failures.failure_of(
            FailureCode.MANAGER_DIED, f"the KV manager of prefill rank {self.endpoint} has ended"
        )


def _not_announced(room: int, why: str) -> None:
    log.warning("room=%d its dp rank could not be announced: %s", room, why)
