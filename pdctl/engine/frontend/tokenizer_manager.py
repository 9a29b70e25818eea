"""The tokenizer manager: one table from rid to waiting request (sglang 0.5.23).

The scheduler batches a step's tokens into one message, so 32 streams cost one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from enum import Enum
from typing import TYPE_CHECKING

import zmq

from pdctl.engine.cluster.dp_controller import LEAST_LOADED, resolve
from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST, ReplicaRank
from pdctl.engine.config.process_log import LogRate
from pdctl.engine.drill import fault_points
from pdctl.engine.frontend.intake import Pace, Turns
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.request_state import GONE, GenerationJob, Options, Pending, RequestGroup
from pdctl.engine.frontend.scheduler_questions import SchedulerQuestions
from pdctl.engine.ipc.channels import Channels, keys_of, local_input
from pdctl.engine.ipc.messages import (
    HEALTH_PREFIX,
    AbortRequest,
    Done,
    Finish,
    Flushed,
    FrameError,
    Generate,
    Outputs,
    Ready,
    Reply,
    Request,
    Rooms,
    Sampling,
    SchedulerReport,
    StartupStage,
    Stop,
    Switched,
    Tokens,
    reply_codec,
    request_codec,
    steady_time,
)
from pdctl.thread_death import guard_task, guarded, in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.observability import Metrics, RequestSpans
    from pdctl.engine.frontend.tokenizer import Tokenizer
    from pdctl.thread_death import Tell

    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")
# Seconds beyond the scheduler's own deadlines after which a silent rank is taken to be stuck.
SILENCE_MARGIN = 60.0
SILENCE_CHECK = 5.0
ABANDONED_AT_ONCE = 64  # requests of one call that end in the same turn
SWITCH_LOOK = 0.05  # seconds between checks whether a role switch is over


class EngineStatus(Enum):
    STARTING = "starting"
    UP = "up"
    SWITCHING = "switching roles"
    BROKEN = "broken"  # a role switch failed half-way
    DRAINING = "draining"
    DEAD = "dead"


class TokenizerManager:
    """Not thread-safe: everything happens on the event loop that called `open`."""

    def __init__(
        self, args: ServerArgs, tokenizer: Tokenizer, metrics: Metrics, ranks: Ranks, spans: RequestSpans | None = None
    ) -> None:
        self._args = args
        self._ranks = ranks
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._spans = spans
        self._table: dict[str, Pending] = {}
        self._most = args.dp_ranks * args.max_running_requests + args.max_queued_requests
        self.questions = SchedulerQuestions(args.dp_ranks, self.send)
        self._pace = Pace()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._counted = args.dispatches and resolve(args) in LEAST_LOADED  # the DP controller counts open requests
        self._heard: asyncio.Event = asyncio.Event()
        self.heard_at = time.monotonic()
        self._reach_tokens = fault_points.raiser("thread.detokenizer")
        self.status = EngineStatus.STARTING
        self.mode = args.disaggregation_mode  # the current one: a role switch changes it

    def open(self, ipc_dir: Path) -> None:
        """Bind the reply socket and connect to the scheduler, or to the DP controller of several."""
        self._loop = asyncio.get_running_loop()
        self._socket = SchedulerSocket(self._args, ipc_dir, self._receive, self._ranks.lose)
        self._watch = self._loop.create_task(self._watch_silence())
        guard_task(self._watch, "watch of the tokenizer manager over silent schedulers", self._ranks.lose)

    def close(self) -> None:
        self._watch.cancel()
        self._socket.close()

    def _receive(self, reply: Reply) -> None:
        self.heard_at = time.monotonic()
        self._heard.set()
        if isinstance(reply, Outputs):
            now = steady_time()
            for tokens in reply.items:
                self._deliver_or_fail(tokens, now)
        elif isinstance(reply, SchedulerReport | Rooms | Flushed | Switched):
            self.questions.answer(reply)
        elif isinstance(reply, Ready):
            self._ranks.on_ready(reply)
        elif isinstance(reply, StartupStage):
            self._ranks.on_stage(reply)
        else:
            self._ranks.on_died(reply)

    def _deliver_or_fail(self, tokens: Tokens, now: float) -> None:
        """Deliver tokens. One of the few places that catch everything: an error may end one request, not all others."""
        pending = self._table.get(tokens.rid)
        try:
            self._deliver(tokens, now)
        except Exception as error:
            log.exception("The detokenizer hit an exception; request %s ends", tokens.rid)
            if pending is not None:
                self._break_off(pending, f"the detokenizer failed on {in_words(error)}")

    def _break_off(self, pending: Pending, reason: str) -> None:
        """End one request whose state may be corrupt, without using that state again."""
        rid = pending.job.rid
        self.send(AbortRequest(rid, exact=True))
        if self._table.pop(rid, None) is not None:
            self._pace.ended()
            if self._counted:
                self.send(Done(rid))
        if not self._table:
            self._idle.set()
        pending.finish = Finish("abort", message=reason, status=500)
        pending.clock.finished = steady_time()
        if not pending.group.done:
            pending.group.note(pending, ended=True)

    def _deliver(self, tokens: Tokens, now: float) -> None:
        if tokens.drained is not None:
            self._metrics.drained(tokens.drained)
            return
        pending = self._table.get(tokens.rid)
        if pending is None:
            return  # ended here already: a stop string, or the client left
        if self._reach_tokens is not None and not _is_health(pending):
            self._reach_tokens()
        gap = now - pending.clock.last_token if pending.clock.last_token else 0.0
        if pending.take(tokens, now):
            self.send(AbortRequest(tokens.rid, exact=True))
        if tokens.ids and not _is_health(pending):  # as in sglang, health requests are no traffic
            self._metrics.token(pending, len(tokens.ids), gap)
        ended = pending.finish is not None
        if ended:
            self._forget(pending)
        pending.group.note(pending, ended)

    def _forget(self, pending: Pending) -> None:
        del self._table[pending.job.rid]
        self._pace.ended()
        if not self._table:
            self._idle.set()
        if self._counted:
            self.send(Done(pending.job.rid))
        if not _is_health(pending):
            self._metrics.finished(pending)
            if self._spans is not None:
                self._spans.finished(pending)
        finish = pending.finish or GONE
        out: dict[str, object] = {
            "finish_reason": finish.type,
            "prompt_tokens": pending.prompt_tokens,
            "completion_tokens": len(pending.ids),
            "e2e_latency": round(pending.clock.finished - pending.clock.received, 6),
        }
        if finish.message:
            out["message"] = finish.message
        self._note(pending, "Finish: obj=%s, out=%s", pending.job.describe, out)

    def _note(self, pending: Pending, message: str, *values: object) -> None:
        """Write SGLang's request lines; those of health checks only at DEBUG."""
        log.log(logging.DEBUG if _is_health(pending) else logging.INFO, message, *values)

    def send(self, request: Request) -> None:
        self._socket.send(request)

    async def submit(self, jobs: tuple[GenerationJob, ...], stream: bool, traceparent: str = "") -> RequestGroup:
        """Hand jobs to the scheduler. Raise HttpRefusal if not serving, if the queue is full, or for a rid in use."""
        self.admit(len(jobs))
        for job in jobs:
            if job.rid in self._table:
                raise HttpRefusal(
                    400, f"Duplicate request ID detected: {job.rid!r} is already running on this instance."
                )
        group = self._register(jobs, stream, traceparent)
        turns = Turns()
        try:
            for member in group.members:
                if member.finish is None:  # otherwise it has ended, and the scheduler need not learn of it
                    self._dispatch(member)
                await turns.after(len(member.job.message.input_ids))
        except asyncio.CancelledError:
            self.abandon(group)
            raise
        return group

    def admit(self, count: int = 1) -> None:
        """Raise HttpRefusal (503) if `count` more requests cannot be taken now."""
        if self.status is not EngineStatus.UP:
            words = {
                EngineStatus.STARTING: "The engine is still starting; GET /ready shows what it waits for.",
                EngineStatus.SWITCHING: "The engine is taking another role.",
                EngineStatus.BROKEN: "The engine is unhealthy after a failed role switch; start it again.",
                EngineStatus.DRAINING: "The engine is shutting down.",
                EngineStatus.DEAD: "The engine lost a rank and is ending.",
            }
            raise HttpRefusal(503, words[self.status])
        over = len(self._table) + count - self._most
        if over > 0:
            raise HttpRefusal(
                503,
                f"The request queue is full: {len(self._table)} requests are running or queued and "
                f"--max-queued-requests is {self._args.max_queued_requests}.",
                retry_after=self._pace.seconds_until(over),
            )

    def _register(self, jobs: tuple[GenerationJob, ...], stream: bool, traceparent: str = "") -> RequestGroup:
        group = RequestGroup(jobs, self._tokenizer, stream, traceparent)
        self._idle.clear()
        now = steady_time()
        for member in group.members:
            self._table[member.job.rid] = member
            member.clock.dispatched = now  # the scheduler's silence is measured from here
        return group

    def _dispatch(self, member: Pending) -> None:
        self._note(member, "Receive: obj=%s", member.job.describe)
        self.send(member.job.message)
        member.clock.dispatched = steady_time()

    def abandon(self, group: RequestGroup, start: int = 0) -> None:
        """End what is left of a call whose client left or whose member failed, and tell the scheduler at once.

        Of thousands of requests only the first end at once, the others in later turns of the event loop.
        """
        group.gone = True
        self._end(group.members[start : start + ABANDONED_AT_ONCE], GONE)
        if start + ABANDONED_AT_ONCE < len(group.members):
            self._loop.call_soon(self.abandon, group, start + ABANDONED_AT_ONCE)

    def _end(self, members: Iterable[Pending], finish: Finish) -> None:
        for pending in members:
            if pending.finish is None:
                self.send(AbortRequest(pending.job.rid, exact=True))
                pending.end(finish)
                self._forget(pending)
                pending.group.note(pending, ended=True)

    def die(self, reason: str) -> None:
        """Refuse everything from now on and end all requests with `reason`: no scheduler answers any more."""
        self.status = EngineStatus.DEAD
        self.fail_questions(reason)
        self.end_all(reason)

    def fail_questions(self, reason: str) -> None:
        """End every wait for the schedulers' answers; a health check that waits for a sign of life fails."""
        self.questions.fail(reason)
        self._heard.set()

    def end_all(self, reason: str, status: int = 503) -> None:
        """End every request with an HTTP error."""
        self._end(list(self._table.values()), Finish("abort", message=reason, status=status))

    def abort(self, rid: str, everything: bool, exact: bool = False) -> int:
        """Ask the scheduler to abort by rid prefix (sglang's rule); the requests end when it answers.

        Return how many match. `exact`: only the call that has this rid; the parts of a batch are rid_0, rid_1, …
        """
        if exact:
            parts = [name for name in self._table if name == rid or (name.startswith(f"{rid}_") and _part(rid, name))]
            for name in parts:
                self.send(AbortRequest(name, exact=True))
            return len(parts)
        matching = [name for name in self._table if everything or name.startswith(rid)]
        if everything:
            self.send(AbortRequest(all=True))
        elif rid:
            self.send(AbortRequest(rid))
        else:
            log.warning("Ignoring abort with empty rid")
            return 0
        return len(matching)

    async def drained(self, seconds: float) -> bool:
        """Wait up to `seconds` for all requests to end; return whether they did."""
        if not self._table:
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    @property
    def running(self) -> int:
        return len(self._table)

    def become(self, mode: str) -> None:
        """Take note of the ranks' new role, for metrics and traces too."""
        self.mode = self._metrics.mode = mode
        if self._spans is not None:
            self._spans.role = mode

    def probe(self, room: int = 0, tokens: int = 1, dp_rank: int | None = None) -> RequestGroup:
        """Run one real request through the fake KV path (sglang: host 2.2.2.2), whatever else is running."""
        paired = self._args.disaggregation_mode != "null"
        message = Generate(
            rid=f"{HEALTH_PREFIX}_{uuid.uuid4().hex}",
            input_ids=[0],
            sampling=Sampling(max_new_tokens=tokens, temperature=0.0, ignore_eos=True),
            bootstrap_host=FAKE_BOOTSTRAP_HOST if paired else None,
            bootstrap_room=room if paired else None,
            received=steady_time(),
            routed_dp_rank=dp_rank,
        )
        group = self._register((GenerationJob(message, Options(message.sampling)),), stream=False)
        self._dispatch(group.members[0])
        return group

    async def healthy(self, seconds: float) -> bool:
        """sglang's rule: any message from the scheduler after the probe is sent counts, so a busy engine is healthy."""
        self._heard.clear()
        group = self.probe()
        try:
            await asyncio.wait_for(self._heard.wait(), seconds)
        except asyncio.TimeoutError:
            self._end(group.members, Finish("abort", message="health check timed out", status=504))
            return False
        return self.status is not EngineStatus.DEAD

    async def wait_for_role_switch(self, seconds: float) -> None:
        """Wait up to `seconds` for a running role switch to end: no probe may be sent during one."""
        deadline = time.monotonic() + seconds
        while self.status is EngineStatus.SWITCHING and time.monotonic() < deadline:
            await asyncio.sleep(SWITCH_LOOK)

    async def _watch_silence(self) -> None:
        """The last line of defence: a rank that is alive but silent must not keep clients waiting forever."""
        longest = self._args.bootstrap_timeout + self._args.waiting_timeout + SILENCE_MARGIN
        reach = fault_points.raiser("thread.silence-watch")
        while True:
            await asyncio.sleep(SILENCE_CHECK)
            if reach is not None:
                reach()
            oldest = min((pending.clock.dispatched for pending in self._table.values()), default=steady_time())
            silent = min(time.monotonic() - self.heard_at, steady_time() - oldest)
            if silent > longest:
                log.error("The scheduler has said nothing for %.0f s; ending %d request(s)", silent, len(self._table))
                self.end_all(f"the scheduler has said nothing for {silent:.0f} s", 504)

    def stop(self, now: bool) -> None:
        self.send(Stop(now))


def _part(rid: str, name: str) -> bool:
    return name[len(rid) + 1 :].isdigit()


def _is_health(pending: Pending) -> bool:
    return pending.job.rid.startswith(HEALTH_PREFIX)


class SchedulerSocket:
    """Connects to the leader of the only DP group, or to the DP controller of several. Needs a running event loop.

    Never blocks that loop: ZMQ queues what is sent, and replies are read whenever the descriptor becomes readable.
    """

    def __init__(self, args: ServerArgs, ipc_dir: Path, receive: Callable[[Reply], None], lose: Tell) -> None:
        """`receive` is called with every reply, `lose` with the reason if no more can be read."""
        self._receive = receive
        self._rate = LogRate(log)
        self._reach = fault_points.raiser("thread.tokenizer-manager")
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._replies = self._context.socket(zmq.PULL)
        self._replies.setsockopt(zmq.RCVHWM, 0)
        self._replies.setsockopt(zmq.MAXMSGSIZE, reply_codec.max_bytes)
        channels = Channels.of(args, ipc_dir)
        keys = keys_of(channels)
        if keys is not None:
            keys.listen(self._replies)
        self._replies.bind(channels.tokenizer)
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.setsockopt(zmq.SNDHWM, 0)
        if keys is not None and args.dispatches:
            keys.dial(self._requests)
        leader = ReplicaRank.all(args.shape)[0].rank  # on this node
        self._requests.connect(channels.controller if args.dispatches else local_input(ipc_dir, leader))
        # ZMQ's descriptor does not signal again for what an error leaves unread, so such an error ends the instance.
        drain = guarded(self._drain, "tokenizer manager", lose)
        self._loop.add_reader(self._replies.fileno(), drain)
        drain()

    def send(self, request: Request) -> None:
        self._requests.send(request_codec.encode(request), zmq.DONTWAIT)

    def _drain(self) -> None:
        """Read until nothing is left: ZMQ's descriptor signals a change of state, not every message."""
        while True:
            try:
                frame = self._replies.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            if self._reach is not None:
                self._reach()
            try:
                self._receive(reply_codec.decode(frame))
            except FrameError as error:
                self._rate.warning("Dropping malformed frame: %s", error)

    def close(self) -> None:
        self._loop.remove_reader(self._replies.fileno())
        self._context.destroy(linger=0)
