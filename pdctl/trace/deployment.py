"""Who is who: the instances behind the logs, the addresses they own, and the workers each router hands out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace.addresses import WILDCARDS, Address, parse, same_host
from pdctl.trace.upstreams import Router, routers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pdctl.engines.identify import Identity
    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.starts_and_ends import LogEnd

RANKS = 4096  # more data parallel ranks than that nobody has
GRACE = 30.0  # seconds of log behind a line from which silence after it is not the log's end


@dataclass(frozen=True, slots=True)
class Instance:
    """One log's process. hosts: addresses it is known by; ranks: `host:port` of its KV managers; agents: NIXL names.

    default_port: what it puts in where a request brings no bootstrap port. started, last: stamps of its start lines and
    of its last line. clean: it ended as it was told to. final: the last known lines of its log. watched: pdctl launched
    it, and writes its end into its log.
    """

    name: str
    role: str
    identity: Identity
    host: str
    port: int | None
    bootstrap_port: int | None
    default_port: int | None
    hosts: frozenset[str]
    ranks: frozenset[str]
    agents: frozenset[str]
    started: tuple[float, ...]
    last: float | None
    clean: bool
    final: tuple[Event, ...]
    watched: bool = False

    def listens_on(self, host: str) -> bool | None:
        """Whether `host` is this process's address; None: it listens on every address and names none."""
        if any(same_host(host, known) for known in self.hosts):
            return True
        return None if self.host in WILDCARDS else False

    def lived_past(self, t: float) -> bool:
        """A line later than the second of `t`, and no new start between: it was up all the time."""
        if self.last is None or self.last < t + 1.0:
            return False
        return not any(t < start <= self.last for start in self.started)

    def ends_behind(self, t: float) -> bool:
        """Its log ends so soon after `t` that its silence since then proves nothing."""
        return self.last is not None and self.last <= t + GRACE

    def covers(self, since: float, until: float) -> bool:
        """Its log begins with its start, before `since`, and goes on past `until`."""
        return any(start <= since for start in self.started) and self.lived_past(until)


class Deployment:
    """`history`: each router's workers, start by start; `routers`: those of one moment."""

    def __init__(self, instances: Iterable[Instance], history: Iterable[tuple[Router, ...]]) -> None:
        self.instances: Mapping[str, Instance] = {one.name: one for one in instances}
        self.history = tuple(starts for starts in history if starts)
        self.routers = tuple(starts[0] for starts in self.history if len(starts) == 1)

    def at(self, t: float | None) -> Deployment:
        """As it was at `t`. A router that was started with other workers since counts as it was then."""
        if len(self.routers) == len(self.history):
            return self
        return Deployment(self.instances.values(), ((_as_of(starts, t),) for starts in self.history if t is not None))

    @classmethod
    def of(cls, library: Library) -> Deployment:
        starts: dict[str, list[Event]] = {}
        for event in library.starts():
            starts.setdefault(event.instance, []).append(event)
        ends = library.ends()
        logs = list({log.instance: log for log in reversed(library.logs)}.values())[::-1]  # of each instance, node 0's
        instances = [
            _instance(log.instance, library.identity(log), starts.get(log.instance, []), ends.get(log.instance))
            for log in logs
        ]
        return cls(
            instances, [routers_of(one.instance, library.identity(one), starts.get(one.instance, [])) for one in logs]
        )

    @cached_property
    def prefills(self) -> tuple[Instance, ...]:
        return tuple(one for one in self.instances.values() if one.role == "prefill")

    @cached_property
    def decodes(self) -> tuple[Instance, ...]:
        return tuple(one for one in self.instances.values() if one.role == "decode")

    @cached_property
    def warm_ups(self) -> frozenset[int]:
        """Rooms engines give their own requests at start; 0 for /health_generate, too (sglang 0.5.3 … 0.5.23)."""
        found = {0}
        for one in (*self.prefills, *self.decodes):
            ranks, width = (_count(one.identity.facts.get(name)) for name in ("dp_size", "tp_size"))
            found.update(rank * (2**63 // ranks) + rank % width for rank in range(ranks))
        return frozenset(found)

    def at_url(self, url: str) -> Instance | None:
        """The engine that serves HTTP at `url`, when exactly one log can be its."""
        address = parse(url)
        return None if address is None else self._owner(address, (*self.prefills, *self.decodes), lambda one: one.port)

    def bootstrap_owner(self, address: Address) -> Instance | None:
        """The prefill whose bootstrap server is at `address`, when exactly one log can be its."""
        return self._owner(address, self.prefills, lambda one: one.bootstrap_port)

    def rank_owner(self, text: str) -> Instance | None:
        """The prefill one of whose ranks has its KV manager at `host:port`."""
        owners = [one for one in self.prefills if text in one.ranks]
        return owners[0] if len(owners) == 1 else None

    def by_agent(self, name: str) -> Instance | None:
        owners = [one for one in self.decodes if name in one.agents]
        return owners[0] if len(owners) == 1 else None

    def complete(self) -> bool:
        """Every prefill a router hands out has a log here; False too when there is no router's list."""
        return bool(self.routers) and all(
            not one.cut and len(one.prefills) <= len(self.prefills) for one in self.routers
        )

    def _owner(
        self, address: Address, among: Iterable[Instance], port: Callable[[Instance], int | None]
    ) -> Instance | None:
        if address.port is None:
            return None
        sure: list[Instance] = []
        perhaps: list[Instance] = []
        for one in among:
            if port(one) not in (address.port, None):
                continue
            here = one.listens_on(address.host)
            if here is False:
                continue
            (sure if here and port(one) is not None else perhaps).append(one)
        if len(sure) == 1:
            return sure[0]
        # On one machine one process has the port; elsewhere the log of another that has it may not be here.
        alone = not sure and len(perhaps) == 1 and port(perhaps[0]) is not None
        return perhaps[0] if alone and (address.loopback or self.complete()) else None


def _count(text: str | None) -> int:
    return numerals.whole(text, RANKS) or 1


def _as_of(starts: Sequence[Router], t: float) -> Router:
    """The last start before `t`; the first, when all came later."""
    before = [one for one in starts if one.start is None or one.start.t is None or one.start.t <= t]
    return before[-1] if before else starts[0]


def _instance(name: str, identity: Identity, starts: list[Event], end: LogEnd | None) -> Instance:
    host = identity.facts.get("host", "")
    ranks, hosts, agents = set(), {host} - WILDCARDS, set()
    for event in starts:
        if event.proves(Sign.RANK_REGISTERED):
            ranks.add(f"{event.values['rank_ip']}:{event.values['rank_port']}")
        elif event.proves(Sign.RANK_LISTENS):
            bound = f"{event.values['rank_ip']}:{event.values['rank_port']}"
            ranks.add(bound)
            hosts.add(event.values["rank_ip"])
        elif event.proves(Sign.AGENT_NAMED):
            agents.add(event.values["agent"])
        elif event.proves(Sign.LISTENS):
            address = parse(event.values.get("addr") or event.values.get("host", ""))
            hosts |= {address.host} - WILDCARDS if address is not None else set()
    told = numerals.whole(identity.facts.get("disaggregation_bootstrap_port"))
    return Instance(
        name, identity.role, identity, host, identity.port, identity.bootstrap_port,
        identity.bootstrap_port if told is None else told, frozenset(hosts), frozenset(ranks), frozenset(agents),
        tuple(event.t for event in starts if event.proves(Sign.STARTED) and event.t is not None),
        end.last if end else None, bool(end and end.clean), end.rows if end else (),
        any(event.proves(Sign.LAUNCHED) for event in starts),
    )  # fmt: skip
