"""One simulated instance: ranks with real schedulers, roles, pools and KV managers, and its bootstrap server."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

import numpy as np

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.ipc.messages import Reply, Request, Tokens
from pdctl.engine.kv_link.kv_manager import DisaggConfig
from pdctl.engine.kvcache.allocator import PageAllocator, PageTable
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.engine.model.parallel import Group, Groups
from pdctl.engine.prefill.bootstrap_server import BootstrapServer
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.prefill.rank_table import BootstrapRequest as HttpRequest
from pdctl.engine.scheduler.loop import Scheduler
from pdctl.engine.scheduler.resources import MetadataSlots, Req, Resources
from pdctl.layout.shape import Shape, place
from tests.engine.invariants.model import SimModel
from tests.engine.invariants.net import Network, SimLoop
from tests.engine.invariants.transport import Fabric, SimTransport

T = TypeVar("T")
PAGE, HEADS, CONTEXT = 4, 2, 96
HOST = "10.0.0.9"
LOCKSTEP = 60.0  # real seconds a rank waits for the others: a thread that hangs is that late, a busy machine is not


class DisagreementError(AssertionError):
    """Ranks of one group went different ways."""


class LeftAloneError(DisagreementError):
    """A rank waits in a collective for one that has ended its turn."""


class Meeting:
    """Where the ranks of an instance exchange what they pass to a collective, each on a thread of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: list[list[Sequence[int]]] = [[()] * size, [()] * size]  # of this collective and of the last
        self._count = [0] * size
        self._ended = [False] * size
        self._moved = threading.Condition()

    def begin(self) -> None:
        """A turn of every rank."""
        self._ended = [False] * self.size

    def end(self, rank: int) -> None:
        """The turn of `rank` is over: whoever waits for it in a collective waits in vain."""
        with self._moved:
            self._ended[rank] = True
            self._moved.notify_all()

    def exchange(self, rank: int, values: Sequence[int]) -> list[Sequence[int]]:
        with self._moved:
            given = self._given[self._count[rank] % 2]  # nobody is two collectives ahead of a rank that still reads
            self._count[rank] += 1
            mine = self._count[rank]
            given[rank] = values
            self._moved.notify_all()
            if not self._moved.wait_for(lambda: min(self._count) >= mine or self._alone(mine), LOCKSTEP):
                raise TimeoutError(f"a rank hangs: {self._count} collectives, {self._ended} ended")
            if min(self._count) < mine:
                raise LeftAloneError("a rank ended its turn while another waited for it in a collective")
            given = list(given)
        if len({len(values) for values in given}) != 1:
            raise DisagreementError(f"the ranks pass {[len(values) for values in given]} values to one collective")
        return given

    def _alone(self, mine: int) -> bool:
        return any(ended and count < mine for ended, count in zip(self._ended, self._count, strict=True))


class SimGroup(Group):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(tuple(range(meeting.size)), rank)
        self._meeting = meeting

    def min_ints(self, values: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self._meeting.exchange(self.rank, list(values)), strict=True)]

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(given) for given in self._meeting.exchange(self.rank, list(values))]

    def share_ints(self, values: Sequence[int], source: int) -> list[int]:
        return list(self._meeting.exchange(self.rank, list(values))[source])


class Mail:
    """Stands in for the mailbox: what arrived since the last turn, and nobody to reply to."""

    def __init__(self) -> None:
        self.inbox: list[Request] = []

    def receive(self, seconds: float) -> list[Request]:
        del seconds
        taken, self.inbox = self.inbox, []
        return taken

    def send(self, reply: Reply) -> None:
        return


class Outbox(list[Tokens]):
    """Every token a rank would have sent; `story` keeps them when the scheduler has emptied the box."""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[Tokens] = []

    def append(self, item: Tokens) -> None:
        self.story.append(item)
        super().append(item)


class Late:
    """Stands in for the forward thread: a pass computes at the last moment, when its results are asked for."""

    def submit(self, compute: Callable[..., T], *given: object) -> LateResult[T]:
        return LateResult(lambda: compute(*given))

    def shutdown(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class LateResult(Generic[T]):
    result: Callable[[], T]


@dataclass(eq=False)
class SimRank:
    resources: Resources
    manager: PrefillManager | DecodeManager
    role: PrefillRole | DecodeRole
    scheduler: Scheduler
    transport: SimTransport
    mail: Mail
    outbox: Outbox
    dead: bool = False

    @property
    def loop(self) -> SimLoop:
        return self.manager.loop  # type: ignore[return-value]

    def holder(self, page: int) -> Req | None:
        """Who may be written to in `page`: a request that has announced it and does not run yet."""
        for queue, req in self.role.members():
            if queue in ("transfer", "draining") and req.row >= 0 and page in req.pages[req.kept_pages :]:
                return req
        return None


@dataclass(frozen=True, slots=True)
class Size:
    """Of one instance: `pages` of PAGE tokens beside the reserved one."""

    role: str
    tp: int
    pages: int = 24
    running: int = 6
    chunk: int = 8
    cached: bool = True
    overlap: bool = True
    attempts: int = 0  # of optimistic prefill


@dataclass(eq=False)
class Instance:
    size: Size
    port: int  # of the bootstrap server; a decode's is nobody's
    net: Network
    fabric: Fabric
    same_host: bool
    ranks: list[SimRank] = field(default_factory=list)
    dead: bool = False
    crippled: bool = False  # a rank has died: no collective succeeds any more
    queue: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.size
        if size.role == "prefill":
            self.server = BootstrapServer(HOST, self.port)
            self.net.servers[self.address] = self._answer
        self._meeting = Meeting(size.tp)
        self.ranks = [self._rank(rank) for rank in range(size.tp)]
        self._threads = ThreadPoolExecutor(size.tp - 1) if size.tp > 1 else None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def leader(self) -> SimRank:
        return self.ranks[0]

    def _answer(self, method: str, target: str, body: bytes | None) -> tuple[int, str]:
        path, _, query = target.partition("?")
        answer = self.server.answer(HttpRequest(method, path, dict(parse_qsl(query)), body or b""))
        return answer.status, answer.body.decode()

    def forget_ranks(self) -> None:
        """The bootstrap server starts again with an empty table."""
        self.server = BootstrapServer(HOST, self.port)

    def _rank(self, rank: int) -> SimRank:
        size = self.size
        args = dataclasses.replace(
            ServerArgs("sim"),
            page_size=PAGE,
            tp_size=size.tp,
            disaggregation_mode=size.role,
            chunked_prefill_size=size.chunk,
            max_running_requests=size.running,
            num_reserved_decode_tokens=8,
            disable_radix_cache=not size.cached,
            disable_overlap_schedule=not size.overlap,
            optimistic_prefill_attempts=size.attempts,
            host=HOST,
            disaggregation_bootstrap_port=self.port,
        )
        geometry = PoolGeometry(
            layers=1, num_pages=size.pages + 1, page_size=PAGE, kv_heads=HEADS // size.tp, head_dim=1, itemsize=4
        )
        transport = self.fabric.transport()
        memory = transport.allocate(geometry.nbytes)
        transport.adopt(memory, geometry)
        pool = KVPool(geometry, memory)
        outbox = Outbox()
        rows = 2 * size.running
        resources = Resources(
            args=args,
            runner=SimModel(pool, transport.tokens),  # type: ignore[arg-type]
            groups=_groups(size.tp, rank, self._meeting),
            allocator=PageAllocator(geometry.num_pages),
            table=PageTable(rows, -(-CONTEXT // PAGE)),
            metadata=MetadataSlots(rows),
            eos=frozenset(),
            limit=CONTEXT,
            capacity=size.pages * PAGE,
            dp_rank=None,
            random=np.random.default_rng(1),
            outbox=outbox,
        )
        config = DisaggConfig(
            role=size.role,
            rank_ip=HOST,
            page_size=PAGE,
            kv_dtype="float32",
            backend="sim",
            bootstrap_host=HOST if size.role == "prefill" else "",
            bootstrap_port=self.port if size.role == "prefill" else 0,
            model="sim",
            layers=1,
            kv_heads=HEADS,
            attn_tp_rank=rank,
            attn_tp_size=size.tp,
        )
        mail = Mail()
        made: PrefillManager | DecodeManager
        role: PrefillRole | DecodeRole
        if size.role == "prefill":
            made = PrefillManager(config, transport, geometry, _nothing)  # type: ignore[arg-type]
            role = PrefillRole(resources, made)
        else:
            made = DecodeManager(config, transport, geometry, _nothing)  # type: ignore[arg-type]
            role = DecodeRole(resources, made)
        if not self.same_host:
            made.host = self.net.name()
        made.on_poisonous = _never  # type: ignore[method-assign]
        made.start()
        done = SimRank(resources, made, role, Scheduler(resources, role, mail), transport, mail, outbox)  # type: ignore[arg-type]
        transport.owner = done.holder
        transport.holds = lambda page: bool(resources.allocator._used[page])
        done.scheduler._overlap._thread = Late()  # type: ignore[assignment]
        done.scheduler._overlap.threshold = 0.0  # no pass is too small for a thread
        return done

    def turn(self) -> None:
        """One turn of every rank's scheduler, in step."""
        if self.dead or self.crippled:
            return
        taken, self.queue = self.queue, []
        for rank in self.ranks:
            rank.mail.inbox.extend(taken)
        if self._threads is None:
            self.leader.scheduler._take_turn(None)
            return
        self._together([rank.scheduler for rank in self.ranks], self._threads)

    def _together(self, schedulers: list[Scheduler], threads: ThreadPoolExecutor) -> None:
        def one(rank: int) -> None:
            try:
                schedulers[rank]._take_turn(None)
            finally:
                self._meeting.end(rank)

        self._meeting.begin()
        turns: list[Future[None]] = [threads.submit(one, rank) for rank in range(1, len(schedulers))]
        try:
            one(0)
            errors: list[BaseException] = []
        except BaseException as error:  # noqa: BLE001  # judged beside those of the other ranks
            errors = [error]
        errors += [error for error in (turn.exception() for turn in turns) if error is not None]
        causes = [error for error in errors if not isinstance(error, LeftAloneError)]
        for error in (*causes, *errors):
            raise error

    def kill(self) -> None:
        """SIGKILL of every process of the instance."""
        self.dead = True
        for rank in self.ranks:
            self.kill_rank(rank)
        if self.size.role == "prefill":
            self.net.servers.pop(self.address, None)
        self.close()

    def kill_rank(self, rank: SimRank) -> None:
        """SIGKILL of one rank; the rest follows when its server has noticed."""
        self.crippled = True
        if not rank.dead:
            rank.dead = True
            rank.loop.die()
            rank.transport.die()

    def close(self) -> None:
        for rank in self.ranks:
            rank.scheduler._overlap.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


def _never(message: object, why: str) -> None:
    """Here every frame is one that a rank sent: the guard around them must have nothing to do."""
    raise AssertionError(f"{message}: {why}")


def _nothing() -> None:
    return


def _groups(tp: int, rank: int, meeting: Meeting) -> Groups:
    if tp == 1:
        return Groups.single()
    shape = Shape(tp=tp)
    group = SimGroup(rank, meeting)
    return Groups(shape, place(shape)[rank], group, group, Group(), group, Group())
