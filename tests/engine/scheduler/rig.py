"""Whole schedulers without processes: real model, pool, managers and transport; the test takes the turns itself.

One thread runs both sides of a pair, turn by turn, so that a test can stop a room at any stage and look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.ipc.messages import (
    AbortRequest,
    Finish,
    Flush,
    Flushed,
    Generate,
    Meta,
    Outputs,
    Reply,
    Request,
    Sampling,
    SchedulerReport,
)
from pdctl.engine.kvcache.allocator import PageAllocator, PageTable
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups
from pdctl.engine.scheduler.loop import Agreed, Scheduler
from pdctl.engine.scheduler.resources import MetadataSlots, Resources
from pdctl.engine.scheduler.role import Queues, SchedulerRole
from pdctl.engine.scheduler.scheduler_rank import (
    Sizing,
    make_manager,
    make_pool,
    make_role,
    make_transport,
    use_threads,
)
from tests.engine.kv_link.rig import PATIENCE, Bootstrap, Woken

TINY = Path(__file__).resolve().parents[3] / "pdctl" / "checkpoints" / "tiny"
HOST = "127.0.0.1"


class Box:
    """The mailbox's two ends in memory."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.replies: list[Reply] = []

    def receive(self, wait: float) -> list[Request]:
        del wait
        taken, self.requests = self.requests, []
        return taken

    def send(self, reply: Reply) -> None:
        self.replies.append(reply)


class Station:
    """One rank. `answer` and `finish` hold what its clients were told."""

    def __init__(self, args: ServerArgs) -> None:
        use_threads(args)
        config = ModelConfig.from_dir(args.model_path)
        sizing = Sizing.resolve(args, config)
        groups = Groups.single()
        self.args = args
        self.transport = make_transport(args, sizing)
        pool = make_pool(sizing, self.transport)
        runner = ModelRunner(config, args.model_path, pool, groups, sizing.dtype, sizing.device)
        rows = 2 * args.max_running_requests
        self.resources = Resources(
            args=args,
            runner=runner,
            groups=groups,
            allocator=PageAllocator(sizing.geometry.num_pages),
            table=PageTable(rows, -(-sizing.context // args.page_size)),
            metadata=MetadataSlots(rows),
            eos=frozenset(config.eos_token_ids),
            limit=sizing.context,
            capacity=sizing.tokens,
            dp_rank=None,
            random=np.random.default_rng(1),
        )
        self.woken = Woken()
        self.deaths: list[str] = []  # of the KV manager
        self.manager = make_manager(
            args, config, sizing, groups, 0, self.transport, self.woken.event.set, self.deaths.append
        )
        if self.manager is not None:
            self.manager.start()
        self.role: SchedulerRole = make_role(self.resources, self.manager)
        self.box = Box()
        self.scheduler = Scheduler(self.resources, self.role, self.box)  # type: ignore[arg-type]
        self.scheduler._overlap.threshold = 0  # the test model's passes are too small to be overlapped otherwise
        self.scheduler._overlap.lone = True
        self.answer: dict[str, list[int]] = defaultdict(list)
        self.logprobs: dict[str, list[float]] = defaultdict(list)
        self.finish: dict[str, Finish] = {}
        self.meta: dict[str, Meta] = {}
        self.flushed: list[Flushed] = []
        self.reports: list[SchedulerReport] = []
        self.told: list[str] = []  # rids, token by token
        self._agreed: Agreed | None = None

    @property
    def queues(self) -> Queues:
        return self.role.queues()

    def turn(self, *requests: Request) -> None:
        self.box.requests.extend(requests)
        self._agreed = self.scheduler._take_turn(self._agreed)
        replies, self.box.replies = self.box.replies, []
        for reply in replies:
            if isinstance(reply, Flushed):
                self.flushed.append(reply)
            if isinstance(reply, SchedulerReport):
                self.reports.append(reply)
            for item in reply.items if isinstance(reply, Outputs) else ():
                self.told += [item.rid] * len(item.ids)
                self.answer[item.rid] += item.ids
                self.logprobs[item.rid] += item.logprobs
                if item.finish:
                    assert item.rid not in self.finish, f"{item.rid} ended twice"
                    self.finish[item.rid] = item.finish
                if item.meta:
                    self.meta[item.rid] = item.meta

    def run(self, *requests: Request) -> None:
        """Until every request that was ever sent here has ended and nothing is held any more."""
        rids = [request.rid for request in requests if isinstance(request, Generate)]
        self.turn(*requests)
        turns_until([self], "every answer", lambda: all(rid in self.finish for rid in rids) and self.idle)

    @property
    def idle(self) -> bool:
        queues = self.queues
        return not queues.total and not queues.draining and not self.scheduler._overlap.under_way

    @property
    def works(self) -> bool:
        """The next turn has something to compute, or to wait for in the middle of it."""
        queues = self.queues
        return bool(queues.running or queues.waiting or self.scheduler._overlap.under_way)

    def close(self) -> None:
        self.scheduler._overlap.close()
        if self.manager is not None:
            self.manager.close()
        if self.transport is not None:
            self.transport.close()


def turns_until(stations: list[Station], what: str, done: Callable[[], object]) -> None:
    """Turns of every station, in order, until `done`; a station that waits for the other side does not spin."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"no {what} within {PATIENCE} s: {[station.queues for station in stations]}"
        for station in stations:
            station.turn()
        if not any(station.works for station in stations):
            stations[0].woken.event.wait(0.001)


def settings(mode: str = "null", **changes: object) -> ServerArgs:
    base = ServerArgs(str(TINY), disaggregation_mode=mode, disaggregation_transfer_backend="shm", num_threads=1)
    small = dataclasses.replace(base, page_size=4, chunked_prefill_size=32, max_total_tokens=1024, context_length=512)
    return dataclasses.replace(small, **changes)  # type: ignore[arg-type]


@contextlib.contextmanager
def unified(**changes: object) -> Iterator[Station]:
    station = Station(settings(**changes))
    try:
        yield station
        station.resources.check_idle()
    finally:
        station.close()


class Pair:
    """A prefill and a decode, joined by a real handshake, and a bootstrap server."""

    def __init__(self, server: Bootstrap, prefill: Station, decode: Station) -> None:
        self.server, self.prefill, self.decode = server, prefill, decode
        self.both = [prefill, decode]

    def send(self, *requests: Generate) -> None:
        """To both sides, as a router does."""
        paired = [with_fields(request, bootstrap_host=HOST, bootstrap_port=self.server.port) for request in requests]
        self.prefill.box.requests.extend(paired)
        self.decode.box.requests.extend(paired)

    def until(self, what: str, done: Callable[[], object]) -> None:
        turns_until(self.both, what, done)

    def run(self, *requests: Generate) -> None:
        self.send(*requests)
        ended = [(side, request.rid) for side in self.both for request in requests]
        self.until("every answer", lambda: all(rid in side.finish for side, rid in ended) and self.idle)

    @property
    def idle(self) -> bool:
        return all(side.idle for side in self.both)


def with_fields(request: Generate, **changes: object) -> Generate:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return Generate(**{**fields, **changes})  # type: ignore[arg-type]


@contextlib.contextmanager
def pair(
    prefill: dict[str, object] | None = None, decode: dict[str, object] | None = None, **both: object
) -> Iterator[Pair]:
    """On the way out both sides must be empty."""
    server = Bootstrap()
    port = {"disaggregation_bootstrap_port": server.port}
    first = Station(settings("prefill", **{**both, **port, **(prefill or {})}))
    second = Station(settings("decode", **{**both, **port, **(decode or {})}))
    try:
        assert first.manager.registered.wait(PATIENCE)  # type: ignore[union-attr]
        made = Pair(server, first, second)
        yield made
        made.until("the end of every room", lambda: made.idle)
        for side in made.both:
            side.resources.check_idle()
    finally:
        for side in (first, second):
            side.close()
        server.close()


def ids(length: int, salt: int = 0) -> list[int]:
    return [5 + (7 * index + salt) % 200 for index in range(length)]


def ask(rid: str, prompt: list[int] | int, tokens: int = 8, room: int = 0, **changes: object) -> Generate:
    """A greedy request; `prompt` is a length or the ids."""
    sampling = Sampling(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    prompt = ids(prompt, len(rid)) if isinstance(prompt, int) else prompt
    return Generate(rid, prompt, sampling, bootstrap_room=room or None, **changes)  # type: ignore[arg-type]


def flush(station: Station) -> bool:
    station.turn(Flush("f"))
    return station.flushed[-1].ok


def abort(station: Station, rid: str) -> None:
    station.turn(AbortRequest(rid, exact=True))
