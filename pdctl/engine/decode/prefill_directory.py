"""One prefill instance as a decode rank knows it, by its bootstrap address: its shape, its ranks, whether it lives.

Step 1 of the handshake is the shape (the all -1 query), step 2 the ranks' endpoints; both are cached here.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pdctl.engine.decode.heartbeat import Heartbeat
from pdctl.engine.decode.prefill_rank import RETRY, Connection
from pdctl.engine.kv_link import room_failure as failures
from pdctl.engine.kv_link.bootstrap_client import BootstrapError, attempt, parallel_info, query_dp_rank
from pdctl.engine.kv_link.rank_shape import MismatchError, check, leader_key, log_mismatch, rank_keys
from pdctl.engine.kv_link.room_failure import Failure, FailureCode
from pdctl.engine.kv_link.room_notices import Notices

if TYPE_CHECKING:
    from pdctl.engine.decode.decode_manager import DecodeManager
    from pdctl.engine.decode.receiver import KvReceiver
    from pdctl.engine.kv_link.bootstrap_rows import ParallelInfo, RankKey
    from pdctl.layout.kv_links import PullTargets

log = logging.getLogger("pdctl.engine")

NOBODY = "none"  # the session of frames that belong to none


class PrefillAddress:
    def __init__(self, manager: DecodeManager, name: str) -> None:
        self.name = name
        self._manager = manager
        self._info: ParallelInfo | None = None
        self._heard: ParallelInfo | None = None  # the last answer, whether or not it still holds
        self._targets: PullTargets | None = None
        self._unheard: list[tuple[KvReceiver, Failure]] = []  # given up before anything was heard from there
        self.proven = False  # a rank of it has accepted a registration: no stranger, if there is a secret
        self._notices = Notices(manager.loop, name, lambda: self.unproven)
        self._waiting: dict[KvReceiver, tuple[RankKey, ...]] = {}  # keys once the DP rank is known
        self._asking: set[KvReceiver] = set()
        self._connections: dict[RankKey, Connection] = {}
        self._heartbeat = Heartbeat(manager.loop, manager.config, name, self._lost)
        self._fetching = False
        self._attempts = 0
        self._began = 0.0
        self._fetched_at = -RETRY

    @property
    def unproven(self) -> str:
        """Its host, as long as it may be a stranger."""
        return "" if self.proven else self.name.rpartition(":")[0] or self.name

    @property
    def idle(self) -> bool:
        """Nothing is known, asked or connected: the address can be forgotten."""
        return not (self._waiting or self._connections or self._info or self._fetching)

    def resolve(self, receiver: KvReceiver) -> None:
        self._waiting[receiver] = ()
        self.advance()

    def advance(self) -> None:
        """Bring every waiting room as far as what is known allows."""
        self._waiting = {room: keys for room, keys in self._waiting.items() if room.active}
        if not self._waiting:
            return
        if self._info is None:
            self._fetch()
            return
        for receiver in list(self._waiting):
            self._route(receiver, self._info)

    # --- step 1: the shape

    def _fetch(self) -> None:
        """At most one question a second, however many rooms wait for the answer."""
        if self._fetching:
            return
        self._fetching = True
        now = time.monotonic()
        if not self._attempts:
            self._began = now
        self._manager.loop.later(max(0.0, self._fetched_at + RETRY - now), self._ask_shape)

    def _ask_shape(self) -> None:
        self._attempts += 1
        self._fetched_at = time.monotonic()
        name = self.name
        self._manager.loop.submit(
            lambda: attempt(lambda: parallel_info(name)), self._shaped, self._spoilt, self.unproven
        )

    def _shaped(self, answer: ParallelInfo | BootstrapError) -> None:
        self._fetching = False
        if isinstance(answer, BootstrapError):
            self._not_shaped(answer)
            return
        self._attempts = 0
        log.debug("Prefill parallel info for [%s]: %s", self.name, answer)
        if self._heard not in (None, answer):
            self._start_over()
        self._heard = answer
        unheard, self._unheard = self._unheard, []
        for receiver, failure in unheard:
            self.give_notice(receiver, failure)
        try:
            self._targets = check(self._manager.shape, answer)
        except MismatchError as error:
            log_mismatch(self.name, str(error))
            self._fail_waiting(failures.of(FailureCode.MISMATCH, f"{error} (bootstrap_addr: {self.name})"))
            return
        self._info = answer
        self._heartbeat.start()
        self.advance()

    def _spoilt(self, why: str) -> None:
        """The answer did what nobody foresaw: who waits for this address fails, and nothing of it is kept."""
        self._fetching = False
        self._attempts = 0
        self._heard = None
        self.forget_shape()
        failure = failures.bootstrap_unreachable(self.name, f"its answer cannot be used ({why})")
        for connection in list(self._connections.values()):
            connection.give_up(failure)
        self._fail_waiting(failure)

    def _start_over(self) -> None:
        """Another shape answers under this address: no rank of the old one may be asked for a new room."""
        self._waiting = dict.fromkeys(self._waiting, ())
        self._notices.forget()
        for connection in list(self._connections.values()):
            connection.retire()

    def _not_shaped(self, error: BootstrapError) -> None:
        self._unheard.clear()
        if error.status:
            log.warning("Failed to get prefill server info: %d, %s", error.status, error.text)
        else:
            log.warning("Error fetching prefill server info from bootstrap: %s", error.message)
        if not error.final and time.monotonic() - self._began < self._manager.config.topology_timeout:
            self.advance()
            return
        log.error("Could not fetch prefill parallel info from %s after %d attempts", self.name, self._attempts)
        self._attempts = 0
        self._fail_waiting(failures.bootstrap_unreachable(self.name, error.message))

    def _fail_waiting(self, failure: Failure) -> None:
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.fail(failure)

    def forget_shape(self) -> None:
        self._info = None
        self._notices.forget()
        self._heartbeat.stop()

    def stale(self, connection: Connection, failure: Failure) -> None:
        """Another process has the port the bootstrap server names: ask anew until its rank has registered again."""
        self.forget_shape()
        self.remove(connection)
        patience = self._manager.config.topology_timeout
        for receiver in [room for room, keys in self._waiting.items() if connection.key in keys]:
            self._waiting[receiver] = ()
            if receiver.age > patience:
                del self._waiting[receiver]
                receiver.fail(failure)
        self._manager.loop.later(RETRY, self.advance)

    # --- rooms given up before a page list was sent

    def give_notice(self, receiver: KvReceiver, failure: Failure) -> None:
        """Tell the prefill, as far as it can be found, so that its request need not wait for its timeout."""
        if not self._manager.config.tell_given_up:
            return
        if self._heard is None:
            self._unheard.append((receiver, failure))
            self._fetch()
            return
        dp = self._dp_rank(receiver, self._heard)
        if dp is not None:
            self._notices.give(leader_key(dp), receiver.farewell(NOBODY, failure, notice=True))

    # --- step 2: the ranks

    def _route(self, receiver: KvReceiver, info: ParallelInfo) -> None:
        if receiver.named and receiver.dp_rank is not None and receiver.dp_rank >= info.dp_size:
            del self._waiting[receiver]
            text = f"disagg_prefill_dp_rank={receiver.dp_rank} out of range [0, {info.dp_size}) of prefill {self.name}"
            receiver.fail(failures.of(FailureCode.NO_DP_RANK, text))
            return
        keys = self._waiting[receiver] or self._keys(receiver, info)
        if not keys:
            return
        self._waiting[receiver] = keys
        connections = tuple(self._connect(key) for key in keys)
        if self._targets is not None and all(connection.ready for connection in connections):
            self._waiting.pop(receiver, None)
            receiver.ready(connections, self._targets)

    def _keys(self, receiver: KvReceiver, info: ParallelInfo) -> tuple[RankKey, ...]:
        dp = self._dp_rank(receiver, info)
        return () if dp is None or self._targets is None else rank_keys(dp, self._targets)

    def _dp_rank(self, receiver: KvReceiver, info: ParallelInfo) -> int | None:
        """sglang 0.5.13+: the request's, 0 of one, room % dp_size, or what the prefill told its bootstrap server."""
        if receiver.dp_rank is not None:
            return receiver.dp_rank
        if info.dp_size == 1:
            return 0
        if info.follow_bootstrap_room and not self._manager.config.query_dp_rank:
            return receiver.room % info.dp_size
        self._ask_dp_rank(receiver)
        return None

    def _ask_dp_rank(self, receiver: KvReceiver) -> None:
        if receiver not in self._asking:
            self._asking.add(receiver)
            name, room = self.name, receiver.room
            self._manager.loop.submit(
                lambda: attempt(lambda: query_dp_rank(name, room)),
                lambda answer: self._dp_answered(receiver, answer),
                self._spoilt,
                self.unproven,
            )

    def _dp_answered(self, receiver: KvReceiver, answer: int | BootstrapError | None) -> None:
        self._asking.discard(receiver)
        if isinstance(answer, int):
            receiver.dp_rank = answer
        if receiver.failure is not None:
            self._give_late_notice(receiver, receiver.failure)
            return
        if receiver.dp_rank is not None:
            self.advance()
        elif receiver.active and receiver.age > self._manager.config.bootstrap_timeout:
            detail = answer.message if isinstance(answer, BootstrapError) else "no prefill DP rank announced it"
            text = f"Could not fetch the prefill dp rank of room {receiver.room} from {self.name}: {detail}"
            receiver.fail(failures.of(FailureCode.BOOTSTRAP_UNREACHABLE, text))
        else:
            self._manager.loop.later(RETRY, self.advance)

    def _give_late_notice(self, receiver: KvReceiver, failure: Failure) -> None:
        """Where the prefill's request comes after the decode's failure its DP rank is known late; or never."""
        if receiver.dp_rank is not None:
            self.give_notice(receiver, failure)
        elif receiver.age < self._manager.config.topology_timeout:
            self._manager.loop.later(RETRY, lambda: self.give_notice(receiver, failure))

    def _connect(self, key: RankKey) -> Connection:
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = Connection(self._manager, self, key)
            connection.begin()
        return connection

    def remove(self, connection: Connection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]

    def connection_ended(self, connection: Connection, failure: Failure) -> None:
        self.remove(connection)
        for receiver in [room for room, keys in self._waiting.items() if connection.key in keys]:
            del self._waiting[receiver]
            receiver.fail(failure)

    # --- life and death

    def _lost(self, detail: str) -> None:
        """The instance does not answer any more: nothing cached about it may be used again."""
        self._info = None
        self._notices.forget()
        failure = failures.prefill_lost(self.name, detail)
        affected = sum(connection.give_up(failure) for connection in list(self._connections.values()))
        self._fail_waiting(failure)
        self.report_lost(affected)

    def report_lost(self, affected: int) -> None:
        log.error(
            "Lost connection with prefill instance (bootstrap_addr: %s), %d requests affected", self.name, affected
        )

    def close(self) -> None:
        self._heartbeat.stop()
