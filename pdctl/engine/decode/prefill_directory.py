"""The prefill instances a decode rank knows, by bootstrap address: their shape, their ranks, whether they are alive.

Step 1 of the handshake fetches the shape (the all -1 query); step 2 fetches the ranks' endpoints and registers with
each rank. Both are cached here. Rooms ask with `find`, which awaits whatever is not known yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pdctl.engine.decode.rank_connection import RETRY, RankConnection
from pdctl.engine.kv_link import room_state as failures
from pdctl.engine.kv_link.bootstrap_client import BootstrapError, RankKey, leader_key
from pdctl.engine.kv_link.kv_manager import RoomNotices
from pdctl.engine.kv_link.rank_shape import MismatchError, find_writers, log_mismatch
from pdctl.engine.kv_link.room_state import Failure, FailureCode, RoomFailedError

if TYPE_CHECKING:
    from pdctl.engine.decode.rank_connection import LinkTable
    from pdctl.engine.kv_link.bootstrap_client import ParallelInfo
    from pdctl.engine.kv_link.kv_frames import Abort
    from pdctl.engine.kv_link.kv_manager import RankContext
    from pdctl.layout.kv_links import PullTargets

log = logging.getLogger("pdctl.engine")

NO_SESSION = "none"  # for frames that belong to no session
MAX_ADDRESSES = 1024  # clients name the address, so idle ones beyond this number are forgotten


class Seeker(Protocol):
    """A room that looks for the ranks of its prefill."""

    @property
    def room(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def age(self) -> float: ...

    @property
    def dp_rank(self) -> int | None:
        """The prefill's DP rank, if the request names it."""
        ...

    def abort_frame(self, session: str, failure: Failure, notice: bool) -> Abort: ...


@dataclass(frozen=True, slots=True)
class Writers:
    """The prefill ranks that will write into a room. Each has accepted our registration."""

    connections: tuple[RankConnection, ...]
    targets: PullTargets


@dataclass(frozen=True, slots=True, eq=False)
class KnownShape:
    info: ParallelInfo
    targets: PullTargets


class ShapeQuestion:
    """A query for an instance's shape that is under way, shared by every room that waits for it."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.over = asyncio.Event()


class PrefillDirectory:
    def __init__(self, context: RankContext, links: LinkTable) -> None:
        self._context = context
        self._links = links
        self._addresses: dict[str, PrefillAddress] = {}

    def at(self, address: str) -> PrefillAddress:
        known = self._addresses.get(address)
        if known is None:
            if len(self._addresses) >= MAX_ADDRESSES:
                self._addresses = {name: known for name, known in self._addresses.items() if not known.idle}
            known = self._addresses[address] = PrefillAddress(self._context, self._links, address)
        return known

    def close(self) -> None:
        for address in self._addresses.values():
            address.close()


class PrefillAddress:
    def __init__(self, context: RankContext, links: LinkTable, name: str) -> None:
        self.name = name
        self._context = context
        self._links = links
        self._shape: KnownShape | None = None
        self._heard: ParallelInfo | None = None  # the last answer, whether or not it still holds
        self._proven = False  # one of its ranks has accepted a registration: with a secret, it is no stranger
        self._lost_shape: tuple[KnownShape, Failure] | None = None  # of the instance that was lost last
        self._question: ShapeQuestion | None = None
        self._asked_at = -RETRY
        self._waiting = 0  # rooms in `find`
        self._notices = RoomNotices(context.loop, name)
        self._connections: dict[RankKey, RankConnection] = {}
        self._heartbeat: asyncio.Task[None] | None = None

    @property
    def unproven(self) -> str:
        """The host of this address while it may be a stranger, else empty."""
        return "" if self._proven else self.name.rpartition(":")[0] or self.name

    @property
    def idle(self) -> bool:
        """Whether nothing is known, being asked or connected, so that the address can be forgotten."""
        return not (self._waiting or self._connections or self._shape or self._question)

    def known(self, seeker: Seeker) -> Writers | None:
        """Return the ranks for `seeker`'s room if nothing has to be asked, else None."""
        shape = self._shape
        dp = self._computed_dp_rank(seeker, shape.info) if shape is not None else None
        if shape is None or dp is None or not 0 <= dp < shape.info.dp_size:
            return None
        found = [self._connections.get(key) for key in _rank_keys(dp, shape.targets)]
        ready = tuple(connection for connection in found if connection is not None and connection.ready)
        return Writers(ready, shape.targets) if len(ready) == len(found) else None

    async def find(self, seeker: Seeker) -> Writers:
        """Return the ranks for `seeker`'s room. Raise RoomFailedError if they cannot be found."""
        self._waiting += 1
        try:
            while True:
                shape = await self._await_shape()
                dp = await self._dp_rank(seeker, shape.info)
                if self._shape is not shape:  # the instance was lost, or another one answers at its address
                    if self._lost_shape is not None and self._lost_shape[0] is shape:
                        raise RoomFailedError(self._lost_shape[1])
                    continue
                connections = tuple(self._connect(key) for key in _rank_keys(dp, shape.targets))
                await self._accepted(connections, seeker)
                if self._shape is shape and all(one.ready and not one.retired for one in connections):
                    return Writers(connections, shape.targets)
        finally:
            self._waiting -= 1

    async def _accepted(self, connections: tuple[RankConnection, ...], seeker: Seeker) -> None:
        """Wait for each rank; the first failure decides. A stale rank is given time to register again."""
        waits = [one for one in connections if not one.ready]
        if len(waits) == 1:
            await waits[0].accepted()
        elif waits:
            await asyncio.gather(*(one.accepted() for one in waits))
        stale = next((one for one in connections if one.stale), None)
        if stale is not None and stale.failure is not None:
            if seeker.age > self._context.config.topology_timeout:
                raise RoomFailedError(stale.failure)
            await asyncio.sleep(RETRY)

    # --- step 1: the shape

    async def _await_shape(self) -> KnownShape:
        while self._shape is None:
            question = self._ask()
            await question.over.wait()
            if self._shape is None and question.failure is not None:
                raise RoomFailedError(question.failure)
        return self._shape

    def _ask(self) -> ShapeQuestion:
        """Return the query that is under way; start one if there is none."""
        question = self._question
        if question is None:
            question = self._question = ShapeQuestion()
            task = self._context.loop.spawn(self._ask_shape(question), partial(self._spoilt, question))
            task.add_done_callback(partial(self._end_question, question))
        return question

    def _end_question(self, question: ShapeQuestion, task: asyncio.Task[None]) -> None:
        del task
        self._question = None
        question.over.set()

    async def _ask_shape(self, question: ShapeQuestion) -> None:
        """Ask for the shape at most once a second, as long as rooms wait for the answer."""
        began, attempts = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, self._asked_at + RETRY - time.monotonic()))
            self._asked_at = time.monotonic()
            attempts += 1
            try:
                answer = await self._context.loop.bootstrap.parallel_info(self.name, self.unproven)
            except BootstrapError as error:
                _log_unanswered(error)
                question.failure = failures.bootstrap_unreachable(self.name, error.message)
                if error.final or time.monotonic() - began > self._context.config.topology_timeout:
                    log.error("Could not fetch prefill parallel info from %s after %d attempts", self.name, attempts)
                    return
                if not self._waiting:
                    return
            else:
                question.failure = self._take(answer)
                return

    def _take(self, answer: ParallelInfo) -> Failure | None:
        """Store the shape. Return a failure if it cannot serve this rank, else None."""
        log.debug("Prefill parallel info for [%s]: %s", self.name, answer)
        if self._heard not in (None, answer):
            self._start_over()
        self._heard = answer
        try:
            targets = find_writers(self._context.shape, answer)
        except MismatchError as error:
            log_mismatch(self.name, str(error))
            return failures.failure_of(FailureCode.MISMATCH, f"{error} (bootstrap_addr: {self.name})")
        self._shape = KnownShape(answer, targets)
        if self._heartbeat is None:
            self._heartbeat = self._context.loop.spawn(
                self._beat(), lambda why: self._lost(f"its health cannot be asked for ({why})")
            )
        return None

    def _start_over(self) -> None:
        """Another shape answers at this address: ask no rank of the old one for a new room."""
        self._notices.forget()
        for connection in list(self._connections.values()):
            connection.retire()

    def _spoilt(self, question: ShapeQuestion, why: str) -> None:
        """The answer raised an unexpected error: fail what waits for this address and keep nothing of the answer."""
        self._heard = None
        self.forget_shape()
        question.failure = failures.bootstrap_unreachable(self.name, f"its answer cannot be used ({why})")
        for connection in list(self._connections.values()):
            connection.give_up(question.failure)

    def forget_shape(self) -> None:
        self._shape = None
        self._notices.forget()
        self._stop_heartbeat()

    # --- step 2: the ranks

    def _computed_dp_rank(self, seeker: Seeker, info: ParallelInfo) -> int | None:
        """Return the DP rank by sglang 0.5.13+'s rule: the request's own, 0 if dp_size is 1, or room % dp_size.

        Return None if only the bootstrap server knows it, because the prefill told it.
        """
        if seeker.dp_rank is not None:
            return seeker.dp_rank
        if info.dp_size == 1:
            return 0
        if info.follow_bootstrap_room and not self._context.config.query_dp_rank:
            return seeker.room % info.dp_size
        return None

    async def _dp_rank(self, seeker: Seeker, info: ParallelInfo) -> int:
        computed = self._computed_dp_rank(seeker, info)
        if computed is None:
            return await self._ask_dp_rank(seeker, self._context.config.bootstrap_timeout)
        if computed >= info.dp_size:
            text = f"disagg_prefill_dp_rank={computed} out of range [0, {info.dp_size}) of prefill {self.name}"
            raise RoomFailedError(failures.failure_of(FailureCode.NO_DP_RANK, text))
        return computed

    async def _ask_dp_rank(self, seeker: Seeker, patience: float) -> int:
        """Ask the bootstrap server. It learns the DP rank late, or never, if the prefill's request comes second."""
        while True:
            try:
                answer = await self._context.loop.bootstrap.query_dp_rank(self.name, seeker.room, self.unproven)
                detail = "no prefill DP rank announced it"
            except BootstrapError as error:
                answer, detail = None, error.message
                if seeker.age > patience:
                    _log_unanswered(error)
            if answer is not None:
                return answer
            if seeker.age > patience:
                text = f"Could not fetch the prefill dp rank of room {seeker.room} from {self.name}: {detail}"
                raise RoomFailedError(failures.failure_of(FailureCode.BOOTSTRAP_UNREACHABLE, text))
            await asyncio.sleep(RETRY)

    def _connect(self, key: RankKey) -> RankConnection:
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = RankConnection(self._context, self._links, self, key)
        return connection

    def accepted(self) -> None:
        """Note that one of its ranks has accepted a registration."""
        self._proven = True

    def remove(self, connection: RankConnection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]

    # --- rooms given up before a page list was sent

    def give_notice(self, seeker: Seeker, failure: Failure) -> None:
        """Tell the prefill, if it can be found, so that its request does not have to wait for its timeout."""
        if not self._context.config.tell_given_up:
            return
        dp = self._computed_dp_rank(seeker, self._heard) if self._heard is not None else None
        if dp is not None:
            self._notify(seeker, failure, dp)
        else:
            self._context.loop.spawn(self._notify_late(seeker, failure), lambda why: None)

    async def _notify_late(self, seeker: Seeker, failure: Failure) -> None:
        if self._heard is None:
            await self._ask().over.wait()
        if self._heard is None:
            return
        dp = self._computed_dp_rank(seeker, self._heard)
        if dp is None:
            try:
                dp = await self._ask_dp_rank(seeker, self._context.config.topology_timeout)
            except RoomFailedError:
                return
        self._notify(seeker, failure, dp)

    def _notify(self, seeker: Seeker, failure: Failure, dp: int) -> None:
        frame = seeker.abort_frame(NO_SESSION, failure, notice=True)
        self._notices.give(leader_key(dp), frame, self.unproven)

    # --- life and death

    async def _beat(self) -> None:
        """Poll GET /health (sglang 0.5.23: every 5 s, lost after 2 misses)."""
        config, misses = self._context.config, 0
        while True:
            await asyncio.sleep(config.heartbeat_interval)
            try:
                await self._context.loop.bootstrap.health(self.name)
                misses = 0
            except BootstrapError as error:
                misses += 1
                log.info("Attempting to reconnect to %s...", self.name)
                if misses >= max(1, config.heartbeat_max_failure):
                    self._heartbeat = None
                    self._lost(f"{misses} heartbeats failed, the last: {error.message}")
                    return

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _lost(self, detail: str) -> None:
        """The instance no longer answers: nothing cached about it may be used again."""
        failure = failures.prefill_lost(self.name, detail)
        if self._shape is not None:
            self._lost_shape = (self._shape, failure)
        self.forget_shape()
        affected = sum(connection.give_up(failure) for connection in list(self._connections.values()))
        self.report_lost(affected)

    def report_lost(self, affected: int) -> None:
        log.error(
            "Lost connection with prefill instance (bootstrap_addr: %s), %d requests affected", self.name, affected
        )

    def close(self) -> None:
        self._stop_heartbeat()


def _log_unanswered(error: BootstrapError) -> None:
    if error.status:
        log.warning("Failed to get prefill server info: %d, %s", error.status, error.text)
    else:
        log.warning("Error fetching prefill server info from bootstrap: %s", error.logged)


def _rank_keys(dp: int, found: PullTargets) -> tuple[RankKey, ...]:
    """Return every rank to register with, within DP group `dp`, in the order SGLang contacts them."""
    return tuple(RankKey(dp, cp, tp, pp) for cp in found.cp_ranks for tp in found.tp_ranks for pp in found.pp_ranks)
