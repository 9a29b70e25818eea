"""One prefill rank as a decode rank knows it: its endpoint, our registration with it, the rooms that depend on it."""

from __future__ import annotations

import logging
import time
import uuid
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.engine.kv_link import room_failure as failures
from pdctl.engine.kv_link.bootstrap_client import BootstrapError, attempt, rank_endpoint
from pdctl.engine.kv_link.kv_frames import RegisterKvArgs, Unregister, codec
from pdctl.engine.kv_link.kv_sockets import LinkError, LinkEvent, tcp
from pdctl.engine.kv_link.rank_shape import log_mismatch
from pdctl.engine.kv_link.room_failure import Failure, FailureCode

if TYPE_CHECKING:
    from pdctl.engine.decode.decode_manager import DecodeManager
    from pdctl.engine.decode.prefill_directory import PrefillAddress
    from pdctl.engine.decode.receiver import KvReceiver
    from pdctl.engine.kv_link.bootstrap_rows import RankEndpoint, RankKey
    from pdctl.engine.kv_link.kv_frames import Frame, RegisterAck
    from pdctl.engine.kv_link.kv_sockets import Link
    from pdctl.engine.kv_link.timers import Timer

log = logging.getLogger("pdctl.engine")

LAST_WORDS = 0.02  # seconds
RETRY = 1.0  # seconds between questions to a bootstrap server that is not complete yet


class Stage(Enum):
    FETCHING = "asking the bootstrap server for the rank's endpoint"
    REGISTERING = "registering with the rank"
    READY = "ready"
    ENDED = "ended"


class Connection:
    """Cached per bootstrap address × dp group × tp rank. A retired one takes no new rooms and ends with its last."""

    def __init__(self, manager: DecodeManager, address: PrefillAddress, key: RankKey) -> None:
        self.session = uuid.uuid4().hex
        self.endpoint = ""
        self.same_host = False
        self.stage = Stage.FETCHING
        self.rooms: set[KvReceiver] = set()
        self.key = key
        self._manager = manager
        self._address = address
        self._link: Link | None = None
        self._retired = False
        self._began = time.monotonic()
        self._timer: Timer | None = None
        self._instance = ""

    @property
    def ready(self) -> bool:
        return self.stage == Stage.READY

    def begin(self) -> None:
        if self.stage != Stage.FETCHING:
            return
        address, key = self._address.name, self.key
        self._manager.loop.submit(
            lambda: attempt(lambda: rank_endpoint(address, key)), self._fetched, self._spoilt, self._address.unproven
        )

    def _spoilt(self, why: str) -> None:
        self.end(failures.of(FailureCode.BOOTSTRAP_UNREACHABLE, f"{self._address.name}: its answer: {why}"))

    def _fetched(self, found: RankEndpoint | BootstrapError) -> None:
        if self.stage != Stage.FETCHING:
            return
        if isinstance(found, BootstrapError):
            if found.final or time.monotonic() - self._began > self._manager.config.topology_timeout:
                self.end(failures.of(FailureCode.BOOTSTRAP_UNREACHABLE, self._not_found(found)))
            else:
                self._manager.loop.later(RETRY, self.begin)
            return
        key = self.key
        log.debug(
            "Fetched bootstrap info: {'rank_ip': '%s', 'rank_port': %d} for DP %d CP %d TP %d PP %d",
            found.rank_ip, found.rank_port, key.dp, key.cp, key.tp, key.pp,
        )  # fmt: skip
        self._instance = found.instance_id
        self._register(tcp(found.rank_ip, found.rank_port))

    def _not_found(self, error: BootstrapError) -> str:
        key = self.key
        return (
            f"Could not fetch bootstrap info for: prefill_dp_rank: {key.dp} prefill_cp_rank: {key.cp} "
            f"target_tp_rank: {key.tp} and target_pp_rank {key.pp}: {error.message}"
        )

    def _register(self, endpoint: str) -> None:
        manager = self._manager
        self.endpoint = endpoint
        self.stage = Stage.REGISTERING
        try:
            self._link = manager.loop.connect(endpoint)
        except LinkError as error:
            self.end(failures.of(FailureCode.RANK_UNREACHABLE, f"prefill {self._address.name} announced {error}"))
            return
        manager.linked(self._link, self)
        self._timer = manager.loop.later(manager.config.connect_timeout, self._unanswered)
        self.send(
            RegisterKvArgs(
                session=self.session,
                endpoint=manager.endpoint,
                host=manager.host,
                backend=manager.transport.name,
                descriptor=manager.transport.descriptor(),
                geometry=manager.geometry,
                shape=manager.shape,
                instance=self._instance,
            )
        )

    def _unanswered(self) -> None:
        if self.stage == Stage.REGISTERING:
            seconds = self._manager.config.connect_timeout
            self.end(
                failures.of(
                    FailureCode.RANK_UNREACHABLE,
                    f"_register_kv_args to prefill {self.endpoint.removeprefix('tcp://')} failed: no answer within "
                    f"{seconds:.1f}s (the rank announced itself there to bootstrap_addr: {self._address.name})",
                )
            )

    def on_ack(self, ack: RegisterAck) -> None:
        if self.stage != Stage.REGISTERING:
            return
        if self._timer is not None:
            self._timer.cancel()
        if not ack.accepted:
            self._refused(ack)
            return
        self.same_host = ack.host == self._manager.host
        self.stage = Stage.READY
        self._address.proven = True
        log.info("Registered KV args with prefill rank %s (bootstrap_addr: %s)", self.endpoint, self._address.name)
        self._address.advance()

    def _refused(self, ack: RegisterAck) -> None:
        text = f"prefill {self.endpoint} (bootstrap_addr: {self._address.name}) refused: {ack.reason}"
        failure = Failure(ack.code or FailureCode.MISMATCH.value, text)
        if failure.code == FailureCode.STALE_ENDPOINT.value:
            self._close(linger=0.0)
            self._address.stale(self, failure)
        else:
            log_mismatch(self._address.name, ack.reason)
            self.end(failure)

    def on_event(self, event: LinkEvent) -> None:
        if event == LinkEvent.UP or self.stage == Stage.ENDED:
            return
        level = logging.WARNING if self.rooms else logging.INFO
        log.log(level, "Prefill rank %s (bootstrap_addr: %s): %s", self.endpoint, self._address.name, event.value)
        if event == LinkEvent.STRANGER:
            text = f"prefill rank {self.endpoint} (bootstrap_addr: {self._address.name}): {event.value}"
            self.end(failures.of(FailureCode.MISMATCH, text))
            return
        self._address.forget_shape()  # whoever answers there next may have another shape
        failure = failures.prefill_lost(self._address.name, f"rank {self.endpoint}: {event.value}")
        # Its last words came over another connection: give them a moment to be read.
        self._manager.loop.later(LAST_WORDS if self.rooms else 0.0, lambda: self._bury(failure))

    def _bury(self, failure: Failure) -> None:
        affected = sum(room.active for room in self.rooms)
        self.end(failure)
        if affected:
            self._address.report_lost(affected)

    def send(self, frame: Frame) -> bool:
        return self._link is not None and self._link.send(codec.encode(frame))

    def leave(self, receiver: KvReceiver) -> None:
        self.rooms.discard(receiver)
        self._end_if_unused()

    def retire(self) -> None:
        """Take no new rooms: the next one asks the bootstrap server anew (sglang 0.5.23 does so after a timeout)."""
        self._retired = True
        self._address.remove(self)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and not self.rooms and self.stage != Stage.ENDED:
            self.send(Unregister(self.session))
            self._close(linger=1.0)

    def give_up(self, failure: Failure) -> int:
        """Fail every room; returns how many. The rank may still live and write: the link stays until they settle."""
        affected = [room for room in self.rooms if room.active]
        for room in affected:
            room.fail(failure)
        self.retire()
        return len(affected)

    def end(self, failure: Failure) -> None:
        """The rank is gone: fail every room that depends on it."""
        if self.stage == Stage.ENDED:
            return
        for room in list(self.rooms):
            room.on_lost(self, failure)
        self._close(linger=0.0)
        self._address.connection_ended(self, failure)

    def _close(self, linger: float) -> None:
        self.stage = Stage.ENDED
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._manager.unlinked(self._link, self)
            self._manager.loop.drop(self._link, linger)
