"""One prefill rank as a decode rank sees it: its endpoint, our registration with it, the rooms that depend on it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.bootstrap_client import BootstrapError
from pdctl.engine.kv_link.kv_frames import LinkError, LinkEvent, RegisterAck, RegisterKvArgs, Unregister, codec, tcp
from pdctl.engine.kv_link.rank_shape import log_mismatch
from pdctl.engine.kv_link.room_state import Failure, FailureCode, RoomFailedError

if TYPE_CHECKING:
    from pdctl.engine.kv_link.bootstrap_client import RankEndpoint, RankKey
    from pdctl.engine.kv_link.kv_frames import Frame, Link
    from pdctl.engine.kv_link.kv_manager import RankContext

log = logging.getLogger("pdctl.engine")

LAST_FRAMES = 0.02  # seconds
RETRY = 1.0  # seconds between queries to a bootstrap server whose ranks are not all registered


class WrittenRoom(Protocol):
    """A room whose pages this rank writes."""

    @property
    def active(self) -> bool: ...
    def fail(self, failure: Failure) -> None: ...
    def on_lost(self, connection: RankConnection, failure: Failure) -> None: ...


class LinkTable(Protocol):
    """Passes a connection the frames and events of its link."""

    def linked(self, link: Link, connection: RankConnection) -> None: ...
    def unlinked(self, link: Link, connection: RankConnection) -> None: ...


class PrefillInstance(Protocol):
    """The prefill instance this rank belongs to."""

    @property
    def name(self) -> str: ...
    @property
    def unproven(self) -> str: ...
    def accepted(self) -> None: ...
    def remove(self, connection: RankConnection) -> None: ...
    def forget_shape(self) -> None: ...
    def report_lost(self, affected: int) -> None: ...


class ConnectionStage(Enum):
    FETCHING = "asking the bootstrap server for the rank's endpoint"
    REGISTERING = "registering with the rank"
    READY = "ready"
    ENDED = "ended"


class RankConnection:
    """Cached per bootstrap address × DP group × TP rank. A retired one takes no new rooms and ends with its last."""

    def __init__(self, context: RankContext, links: LinkTable, instance: PrefillInstance, key: RankKey) -> None:
        self.session = uuid.uuid4().hex
        self.endpoint = ""
        self.same_host = False
        self.stage = ConnectionStage.FETCHING
        self.rooms: set[WrittenRoom] = set()
        self.key = key
        self.retired = False
        self.failure: Failure | None = None  # why it ended before it was ready
        self.stale = False  # it ended because another process now has the port that the bootstrap server names
        self._context = context
        self._links = links
        self._instance = instance
        self._link: Link | None = None
        self._decided = asyncio.Event()  # ready, ended or retired: nothing is left to wait for
        self._ack: asyncio.Future[RegisterAck] | None = None
        self._task = context.loop.spawn(self._open(), self._spoilt)

    @property
    def ready(self) -> bool:
        return self.stage == ConnectionStage.READY

    async def accepted(self) -> None:
        """Wait until the rank has accepted our registration. Raise RoomFailedError if it has failed for good.

        Return without acceptance if the connection takes no new rooms any more: the caller then asks for the next.
        """
        await self._decided.wait()
        if self.failure is not None and not self.stale:
            raise RoomFailedError(self.failure)

    async def _open(self) -> None:
        """Fetch the rank's endpoint, dial it, register with it. Every failure on the way ends the connection."""
        try:
            found = await self._fetch()
            await self._register(tcp(found.rank_ip, found.rank_port), found.instance_id)
        except RoomFailedError as error:
            self.end(error.failure)

    def _spoilt(self, why: str) -> None:
        self.end(failures.failure_of(FailureCode.BOOTSTRAP_UNREACHABLE, f"{self._instance.name}: its answer: {why}"))

    async def _fetch(self) -> RankEndpoint:
        began, key, address = time.monotonic(), self.key, self._instance.name
        while True:
            try:
                found = await self._context.loop.bootstrap.rank_endpoint(address, key, self._instance.unproven)
            except BootstrapError as error:  # noqa: PERF203  # what it guards takes milliseconds
                if error.final or time.monotonic() - began > self._context.config.topology_timeout:
                    log.warning("Error fetching prefill rank info from bootstrap: %s", error.logged)
                    text = (
                        f"Could not fetch bootstrap info for: prefill_dp_rank: {key.dp} prefill_cp_rank: {key.cp} "
                        f"target_tp_rank: {key.tp} and target_pp_rank {key.pp}: {error.message}"
                    )
                    raise RoomFailedError(failures.failure_of(FailureCode.BOOTSTRAP_UNREACHABLE, text)) from None
                await asyncio.sleep(RETRY)
            else:
                log.debug(
                    "Fetched bootstrap info: {'rank_ip': '%s', 'rank_port': %d} for DP %d CP %d TP %d PP %d",
                    found.rank_ip, found.rank_port, key.dp, key.cp, key.tp, key.pp,
                )  # fmt: skip
                return found

    async def _register(self, endpoint: str, instance: str) -> None:
        context = self._context
        self.endpoint = endpoint
        self.stage = ConnectionStage.REGISTERING
        try:
            self._link = context.loop.connect(endpoint)
        except LinkError as error:
            text = f"prefill {self._instance.name} announced {error}"
            raise RoomFailedError(failures.failure_of(FailureCode.RANK_UNREACHABLE, text)) from None
        self._links.linked(self._link, self)
        self._ack = asyncio.get_running_loop().create_future()
        self.send(
            RegisterKvArgs(
                session=self.session,
                endpoint=context.endpoint,
                host=context.host,
                backend=context.transport.name,
                descriptor=context.transport.descriptor(),
                geometry=context.geometry,
                shape=context.shape,
                instance=instance,
            )
        )
        try:
            self._answered(await asyncio.wait_for(self._ack, context.config.connect_timeout))
        except asyncio.TimeoutError:
            text = (
                f"_register_kv_args to prefill {endpoint.removeprefix('tcp://')} failed: no answer within "
                f"{context.config.connect_timeout:.1f}s (the rank announced itself there to bootstrap_addr: "
                f"{self._instance.name})"
            )
            raise RoomFailedError(failures.failure_of(FailureCode.RANK_UNREACHABLE, text)) from None

    def on_ack(self, ack: RegisterAck) -> None:
        if self._ack is not None and not self._ack.done():
            self._ack.set_result(ack)

    def _answered(self, ack: RegisterAck) -> None:
        if ack.accepted:
            self.same_host = ack.host == self._context.host
            self.stage = ConnectionStage.READY
            self._decided.set()
            log.info("Registered KV args with prefill rank %s (bootstrap_addr: %s)", self.endpoint, self._instance.name)
            self._instance.accepted()
            return
        text = f"prefill {self.endpoint} (bootstrap_addr: {self._instance.name}) refused: {ack.reason}"
        failure = Failure(ack.code or FailureCode.MISMATCH.value, text)
        self.stale = failure.code == FailureCode.STALE_ENDPOINT.value
        if self.stale:
            self._instance.forget_shape()
        else:
            log_mismatch(self._instance.name, ack.reason)
        raise RoomFailedError(failure)

    def on_event(self, event: LinkEvent) -> None:
        if event == LinkEvent.UP or self.stage == ConnectionStage.ENDED:
            return
        name = self._instance.name
        level = logging.WARNING if self.rooms else logging.INFO
        log.log(level, "Prefill rank %s (bootstrap_addr: %s): %s", self.endpoint, name, event.value)
        if event == LinkEvent.STRANGER:
            text = f"prefill rank {self.endpoint} (bootstrap_addr: {name}): {event.value}"
            self.end(failures.failure_of(FailureCode.MISMATCH, text))
            return
        self._instance.forget_shape()  # whatever answers there next may have another shape
        failure = failures.prefill_lost(name, f"rank {self.endpoint}: {event.value}")
        # The rank's last frames came over another connection: allow a moment for them to be read.
        self._context.loop.later(LAST_FRAMES if self.rooms else 0.0, lambda: self._lose(failure))

    def _lose(self, failure: Failure) -> None:
        affected = sum(room.active for room in self.rooms)
        self.end(failure)
        if affected:
            self._instance.report_lost(affected)

    def send(self, frame: Frame) -> bool:
        return self._link is not None and self._link.send(codec.encode(frame))

    def join(self, room: WrittenRoom) -> None:
        self.rooms.add(room)

    def leave(self, room: WrittenRoom) -> None:
        self.rooms.discard(room)
        self._end_if_unused()

    def retire(self) -> None:
        """Take no new rooms: the next room asks the bootstrap server again (sglang 0.5.23 does so after a timeout)."""
        self.retired = True
        self._decided.set()
        self._instance.remove(self)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.retired and not self.rooms and self.stage != ConnectionStage.ENDED:
            self.send(Unregister(self.session))
            self._close(linger=1.0)

    def give_up(self, failure: Failure) -> int:
        """Fail every active room, and those waiting to join. Return how many active rooms failed.

        The rank may be alive, so the link stays open for rooms that drain.
        """
        if not self.ready:
            self.failure = failure
        affected = [room for room in self.rooms if room.active]
        for room in affected:
            room.fail(failure)
        self.retire()
        return len(affected)

    def end(self, failure: Failure) -> None:
        """The rank is gone: fail every room that depends on it."""
        if self.stage == ConnectionStage.ENDED:
            return
        self.failure = failure
        for room in list(self.rooms):
            room.on_lost(self, failure)
        self._close(linger=0.0)
        self._instance.remove(self)
        self._decided.set()

    def _close(self, linger: float) -> None:
        self.stage = ConnectionStage.ENDED
        self._task.cancel()
        if self._link is not None:
            self._links.unlinked(self._link, self)
            self._context.loop.drop(self._link, linger)
