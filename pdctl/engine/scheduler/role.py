"""What the event loop needs from a role, the role of an ordinary engine, and how a rank switches roles.

Prefill and decode have packages of their own. A rank switches roles while nothing is in flight (sglang 0.5.23
disaggregation/role_switch.py). Weights, KV pool and transport stay; queues, KV manager and prefix cache are replaced.
The ranks of a DP group agree and switch together. The HTTP process makes all groups of an instance do so: it asks every
group whether it could before it tells any to switch (engine/frontend/instance_routes.py).
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.drill.fault_points import arm
from pdctl.engine.ipc.messages import NOT_IDLE, UNHEALTHY, LiveRoom, Switched, steady_time
from pdctl.engine.kv_link.room_state import Failure, FailureCode
from pdctl.engine.scheduler.resources import Req
from pdctl.engine.scheduler.schedule_batch import RunningBatch, WaitingQueue
from pdctl.engine.transfer.transport import TransferError
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from pdctl.engine.ipc.messages import Generate, SwitchRole
    from pdctl.engine.model.parallel import Group
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.schedule_batch import Batch, Outcome

log = logging.getLogger("pdctl.engine")

Match = Callable[[Req], bool]
DRAINING = "draining"
REFUSED, FAILED = "role_switch_refused", "role_switch_failed"
NUMBERS = 192
PACKED = struct.Struct(f"<{NUMBERS}q")
# Queue → what moves a request out of it.
WAITS = {
    "bootstrap": "the decode's page list for this room",
    "waiting": "its forward pass",
    "inflight": "the end of its KV transfer",
    "prealloc": "the handshake with prefill {address}",
    "transfer": "the KV cache from prefill {address}",
    "running": "its next token",
    "retracted": "free pages, to resume",
    "draining": "the other side to stop writing",
}
NO_MEMORY = "free pages on this decode"
LONGEST_STEP = 2_000_000  # microseconds; what is longer is no decode step but a pause (sglang 0.5.23)


class RequestPlace(Protocol):
    """One of a role's queues."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Req]: ...
    def remove(self, req: Req, /) -> None:
        """Remove `req`, which must be in it; the caller releases its pages."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Requests in each queue, under the names of sglang's log lines and /v1/loads."""

    running: int = 0
    waiting: int = 0
    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    draining: int = 0
    retracted: int = 0

    @property
    def total(self) -> int:
        queued = self.waiting + self.bootstrap + self.inflight + self.prealloc + self.transfer + self.retracted
        return self.running + queued

    @property
    def remote(self) -> int:
        """Requests that wait for the other side: only these need polling."""
        return self.bootstrap + self.inflight + self.prealloc + self.transfer + self.draining


@dataclass(frozen=True, slots=True)
class QueuedTokens:
    """Tokens of the requests in the queues, as sglang 0.5.23's /v1/loads counts them.

    uncached: prompt tokens of the waiting queue that are to be computed; of a request that has not begun, an estimate.
    without_pages: of requests that hold none. awaiting_kv: of a decode's rooms whose KV cache has not arrived.
    prealloc_ready: of those in the prealloc queue that wait for memory alone.
    """

    uncached: int
    without_pages: int
    awaiting_kv: int
    prealloc: int
    prealloc_ready: int
    prealloc_ready_reqs: int

    @classmethod
    def of(cls, role: SchedulerRole, hit_rate: float) -> QueuedTokens:
        """`hit_rate`: the share of a prompt that is likely to be in the prefix cache."""
        places = {name: list(place) for name, place in role.places().items() if name != DRAINING}
        waiting, prealloc = places.get("waiting", []), places.get("prealloc", [])
        ready = [req for req in prealloc if req.times.ready]
        return cls(
            uncached=sum(
                req.prompt_len - req.computed if req.row >= 0 else int(req.prompt_len * (1 - hit_rate))
                for req in waiting
            ),
            without_pages=sum(req.length for place in places.values() for req in place if req.row < 0),
            awaiting_kv=sum(req.length for req in (*prealloc, *places.get("transfer", []))),
            prealloc=sum(req.prompt_len for req in prealloc),
            prealloc_ready=sum(req.length for req in ready),
            prealloc_ready_reqs=len(ready),
        )


class WorkCounters:
    """Work since the start, as sglang 0.5.23's /v1/loads counts it. Passes of health requests alone are left out.

    The time of a prefill pass goes from the end of the one before, if it followed at once, to its own end; that of a
    decode step from the beginning of the one before to its own, and is left out if there was a pause between them.
    """

    def __init__(self) -> None:
        self._last: Outcome | None = None
        self._paused = False
        self._prefill_ended = 0.0
        self._computed = self._cached = self._prefill_us = 0
        # Of decode steps: how many; the sums of batch size b, of time t in µs, of b², of b × t, of tokens made.
        self._moments = [0] * 6
        self._made = 0  # by decode passes, whether their time counts or not

    def pause(self) -> None:
        """Take note that a turn had nothing to compute: the next pass does not follow at once."""
        self._paused = True

    def add(self, outcome: Outcome) -> None:
        batch, last = outcome.batch, self._last
        follows = last is not None and not self._paused and last.batch.prefill == batch.prefill
        self._last, self._paused = outcome, False
        if batch.prefill:
            began = self._prefill_ended if follows else max(outcome.began, self._prefill_ended)
            self._prefill_us += round((outcome.ended - began) * 1e6)
            self._prefill_ended = outcome.ended
            self._computed += batch.tokens
            self._cached += batch.cached
            return
        self._made += len(outcome.made)
        spent = round((outcome.began - last.began) * 1e6) if last is not None and follows else 0
        if 0 < spent < LONGEST_STEP:
            size = len(batch.parts)
            step = (1, size, spent, size * size, size * spent, len(outcome.made))
            self._moments = [total + more for total, more in zip(self._moments, step, strict=True)]

    def totals(self) -> dict[str, float]:
        return {
            "total_prefill_uncached_tokens": self._computed,
            "total_prefill_cached_tokens": self._cached,
            "total_prefill_busy_us": self._prefill_us,
            "total_decode_tokens": self._made,
            **{f"decode_moment_{power}": total for power, total in enumerate(self._moments)},
        }


class SchedulerRole(ABC):
    """Owns the queues of one kind of instance. Called by the event loop's thread only."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.running = RunningBatch(resources)
        self._arrived = 0
        args = resources.args
        self.faults = arm(resources.tp_rank, args.rehearsal.fault(args.disaggregation_mode))

    def admit(self, message: Generate) -> None:
        """Take a request, or answer why it can never run here (sglang 0.5.23: HTTP 400)."""
        resources = self.resources
        prompt = len(message.input_ids)
        limit = min(resources.limit, resources.capacity)
        if prompt >= limit:
            req = Req.of(message, 1)
            text = f"Request {req.rid} exceeds the maximum number of tokens: {prompt} > {limit - 1}"
            resources.fail(req, text, 400, "context_length_exceeded")
            return
        req = Req.of(message, min(message.sampling.max_new_tokens, limit - prompt))
        self._arrived += 1
        req.order = self._arrived
        if self.faults is not None and message.bootstrap_host != FAKE_BOOTSTRAP_HOST:
            self.faults.admitted(req.room)
        self.add(req)

    @abstractmethod
    def add(self, req: Req) -> None:
        """Put an admitted request into the role's first queue."""

    @abstractmethod
    def poll(self) -> None:
        """Move requests whose other side has news. Collective: every rank of the TP group calls it each turn."""

    @abstractmethod
    def next_batch(self) -> Batch | None:
        """Return the next forward pass, or None if nothing can run."""

    def began(self, batch: Batch) -> None:
        """Send what need not wait for the end of the pass, which is now under way."""
        del batch

    @abstractmethod
    def process_result(self, outcome: Outcome) -> None:
        """Use the results of a pass: move or end requests. Nothing is being computed; the next pass waits for this."""

    @abstractmethod
    def publish(self, outcome: Outcome) -> None:
        """Send tokens and pages on, after `process_result`. The next pass may be under way and does not wait."""

    @abstractmethod
    def places(self) -> dict[str, RequestPlace]:
        """Return all places of requests by their names in `Queues`; every request of this rank is in one of them."""

    def members(self) -> Iterator[tuple[str, Req]]:
        """Yield every request with the name of its place. Those in `draining` have ended but still hold pages."""
        return ((name, req) for name, place in self.places().items() for req in place)

    def queues(self) -> Queues:
        """Return how many requests are in each place."""
        return Queues(**{name: len(place) for name, place in self.places().items()})

    def abort(self, match: Match) -> int:
        """Abort every matching request, wherever it is; return how many."""
        found = [
            (name, place, req)
            for name, place in self.places().items()
            if name != DRAINING
            for req in place
            if match(req)
        ]
        for name, place, req in found:
            place.remove(req)
            self.give_up(req, name)
        return len(found)

    def give_up(self, req: Req, name: str) -> None:
        """End an aborted request that has been taken out of the place `name`."""
        del name
        self.resources.cancel(req)
        self.resources.release(req)

    def reached(self, step: str, req: Req) -> None:
        """Apply the fault that PDCTL_FAULTS asks for at this step of a request, if any (drill/fault_points.py)."""
        if self.faults is not None:
            self.faults.at(step, req.room)


class UnifiedRole(SchedulerRole):
    """Prefill goes first, as in sglang; requests retracted for lack of pages go before that."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.waiting = WaitingQueue(resources, self._admit)

    def add(self, req: Req) -> None:
        self.waiting.add(req)

    def _admit(self, req: Req) -> bool:
        running = self.running
        if running.retracted:
            return False
        return running.admission.admit(req, [*running, *self.waiting.started])

    def poll(self) -> None:
        return

    def next_batch(self) -> Batch | None:
        self.running.resume(lambda: self.waiting.started)
        room_for = self.resources.args.max_running_requests - len(self.running)
        return self.waiting.next_batch(room_for) or self.running.next_batch()

    def process_result(self, outcome: Outcome) -> None:
        if not outcome.batch.prefill:
            self.running.drop_finished()
            return
        self.waiting.end_pass()
        for req, _ in outcome.batch.parts:
            if not req.failed:
                self.resources.keep(req)
        for req in outcome.made:
            if req.finish is None:
                self.running.join(req)
            else:
                self.resources.release(req)

    def publish(self, outcome: Outcome) -> None:
        for req in outcome.made:
            self.resources.emit(req, req.output_ids[-1:])

    def places(self) -> dict[str, RequestPlace]:
        return {"waiting": self.waiting, "running": self.running, "retracted": self.running.retracted}


class RoleSwitch:
    """Collective: all ranks of a DP group call `take` for the same order in the same turn."""

    def __init__(self, resources: Resources, become: Callable[[str], SchedulerRole]) -> None:
        """`become` builds the new role; it raises PdctlError, TransferError or OSError if it cannot."""
        self._resources = resources
        self._become = become
        self._broken = False

    def take(self, order: SwitchRole, role: SchedulerRole) -> tuple[SchedulerRole, Switched]:
        """Return the role from now on, and the leader's answer."""
        refusal = self._agreed(Failure(REFUSED, reason) if (reason := self._obstacle(role)) else None)
        if refusal is not None:
            return role, self._answer(order, refusal.message, safe=not self._broken)
        old = self._resources.args.disaggregation_mode
        if not order.commit:
            return role, self._answer(order, "", safe=True)
        if old == order.role:
            return role, self._answer(order, "", safe=False)
        new, failure = self._turn(order.role)
        failure = self._agreed(failure)
        if failure is None and new is not None:
            log.info("PD role switch succeeded: %s -> %s", old, order.role)  # sglang's line
            return new, self._answer(order, "", safe=False)
        self._broken = True
        why = failure.message if failure else "unknown"
        log.critical(  # sglang's line
            "PD role switch (%s -> %s) failed during teardown/rebuild; instance unhealthy: %s", old, order.role, why
        )
        return role, self._answer(order, f"role switch failed; instance unhealthy, restart required: {why}", safe=False)

    def _obstacle(self, role: SchedulerRole) -> str:
        if self._broken:
            return UNHEALTHY
        queues = role.queues()
        return NOT_IDLE if queues.total or queues.draining else ""

    def _turn(self, mode: str) -> tuple[SchedulerRole | None, Failure | None]:
        try:
            return self._become(mode), None
        except PdctlError as error:
            return None, Failure(FAILED, error.message)
        except (TransferError, OSError) as error:
            return None, Failure(FAILED, f"{type(error).__name__}: {error}")

    def _agreed(self, own: Failure | None) -> Failure | None:
        return shared_failure(self._resources.groups.replica, own)

    def _answer(self, order: SwitchRole, problem: str, *, safe: bool) -> Switched:
        return Switched(order.id, self._resources.dp_rank or 0, not problem, problem, safe)


def shared_failure(group: Group, own: Failure | None) -> Failure | None:
    """Return the failure of the lowest rank that has one, a cause before an echo. Every rank of `group` calls this."""
    if group.size == 1:
        return own
    found = [unpack_failure(numbers) for numbers in group.gather_ints(pack_failure(own))]
    told = [failure for failure in found if failure is not None]
    causes = [failure for failure in told if failure.code != FailureCode.ABORTED.value]
    return next(iter(causes or told), None)


def pack_failure(failure: Failure | None) -> tuple[int, ...]:
    """Encode into a fixed number of int64s; truncate the message to fit."""
    text = f"{failure.code}\n{failure.message}" if failure else ""
    return PACKED.unpack(text.encode()[: PACKED.size].ljust(PACKED.size, b"\0"))


def unpack_failure(numbers: tuple[int, ...]) -> Failure | None:
    text = PACKED.pack(*numbers).rstrip(b"\0").decode(errors="ignore")
    code, _, message = text.partition("\n")
    return Failure(code, message) if code else None


def live_rooms(role: SchedulerRole) -> list[LiveRoom]:
    """Return the requests that have not ended or still hold pages, oldest first."""
    rooms = [_live(queue, req) for queue, req in role.members()]
    return sorted(rooms, key=lambda room: -room.age)


def _live(queue: str, req: Req) -> LiveRoom:
    end = req.sender or req.receiver
    state = end.poll().label if end else ""
    return LiveRoom(
        room=req.room,
        rid=req.rid,
        queue=queue,
        state=state,
        age=round(steady_time() - req.times.received, 6),
        waiting_for=_waits(queue, req, state),
        prompt_tokens=req.prompt_len,
        output_tokens=len(req.output_ids),
        pages=len(req.pages),
        peers=list(end.peers) if end else [],
    )


def _waits(queue: str, req: Req, state: str) -> str:
    if queue == "prealloc" and state != "KVPoll.Bootstrapping":
        return NO_MEMORY
    message = req.message
    return WAITS[queue].format(address=f"{message.bootstrap_host}:{message.bootstrap_port}")
