"""The deployment according to its logs: instances, the addresses they own, and the workers each router lists."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pdctl.engines import numerals
from pdctl.engines.base import Sign
from pdctl.engines.row_matching import adapter
from pdctl.loopback import is_localhost, is_loopback
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.identify import Identity, ListedPrefill
    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.log_sample import LogEnd
    from pdctl.logs.source import Log

RANKS = 4096  # more data parallel ranks than any deployment has
GRACE = 30.0  # seconds a log must go on after a line for later silence to mean something
MOST_ADDRESSES = 4096  # whose owner is remembered
_QUOTED = compile_late(r"\"[^\"]*\"|'[^']*'")
_HOST = compile_late(r"[\w.:-]*\w[\w.:-]*")
PLACEHOLDER = "<bootstrap port of "  # stands for a port that no log names
POLICIES = {
    "RoundRobin": "round_robin", "Random": "random", "CacheAware": "cache_aware", "PowerOfTwo": "power_of_two",
    "Manual": "manual", "Bucket": "bucket",
}  # fmt: skip
WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})
SEPARATE = (
    "give each process's log by itself, or let the collector name the source: kubectl logs --prefix, stern, docker "
    "compose logs (without --no-log-prefix), journalctl -o json"
)


class ObservedInstance(NamedTuple):
    """The process of one log. hosts: addresses it is known by; ranks: `host:port` of KV managers; agents: NIXL names.

    default_port: the port it uses when a request carries no bootstrap port. started, last: epoch seconds of its start
    lines and of its last line. clean: it ended because it was told to. final: the last known lines of its log.
    watched: pdctl launched it and writes its end into its log.
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

    @property
    def names_every_room(self) -> bool:
        known = adapter(self.identity.speaker)
        return known is not None and known.names_every_room

    @property
    def logs_every_request(self) -> bool:
        return self.identity.log_requests or self.names_every_room

    def listens_on(self, host: str) -> bool | None:
        """Whether `host` is this process's address; None if it listens on every address and names none."""
        if any(same_host(host, known) for known in self.hosts):
            return True
        return None if self.host in WILDCARDS else False

    def lived_past(self, t: float) -> bool:
        """Whether it has a line later than the second of `t` without a new start between: it was up throughout."""
        if self.last is None or self.last < t + 1.0:
            return False
        return not any(t < start <= self.last for start in self.started)

    def ends_behind(self, t: float) -> bool:
        """Whether its log ends so soon after `t` that its silence since then proves nothing."""
        return self.last is not None and self.last <= t + GRACE

    def covers(self, since: float, until: float) -> bool:
        """Whether its log begins with its start, before `since`, and goes on past `until`."""
        return any(start <= since for start in self.started) and self.lived_past(until)


class ObservedDeployment:
    """history: each router's workers, start by start; routers: the workers of each router that had only one list."""

    def __init__(self, instances: Iterable[ObservedInstance], history: Iterable[tuple[RouterWorkers, ...]]) -> None:
        self.instances: Mapping[str, ObservedInstance] = {one.name: one for one in instances}
        self.history = tuple(starts for starts in history if starts)
        self.routers = tuple(starts[0] for starts in self.history if len(starts) == 1)
        self._owners: dict[tuple[bool, HostPort], ObservedInstance | None] = {}

    def at(self, t: float | None) -> ObservedDeployment:
        """The deployment as it was at `t`, with the workers each router had then."""
        if len(self.routers) == len(self.history):
            return self
        return ObservedDeployment(
            self.instances.values(), ((_as_of(starts, t),) for starts in self.history if t is not None)
        )

    @classmethod
    def of(cls, library: Library) -> ObservedDeployment:
        starts: dict[str, list[Event]] = {}
        for event in library.starts:
            starts.setdefault(event.instance, []).append(event)
        ends = library.ends
        logs = list({log.instance: log for log in reversed(library.logs)}.values())[::-1]  # node 0's log
        instances = [
            _instance(log.instance, library.identity(log), starts.get(log.instance, []), ends.get(log.instance))
            for log in logs
        ]
        return cls(
            instances, [routers_of(one.instance, library.identity(one), starts.get(one.instance, [])) for one in logs]
        )

    @cached_property
    def prefills(self) -> tuple[ObservedInstance, ...]:
        return tuple(one for one in self.instances.values() if one.role == "prefill")

    @cached_property
    def decodes(self) -> tuple[ObservedInstance, ...]:
        return tuple(one for one in self.instances.values() if one.role == "decode")

    @cached_property
    def warm_ups(self) -> frozenset[int]:
        """Rooms engines give their own requests at start; /health_generate uses 0, too (sglang 0.5.3 … 0.5.23)."""
        found = {0}
        for one in (*self.prefills, *self.decodes):
            ranks, width = (_count(one.identity.facts.get(name)) for name in ("dp_size", "tp_size"))
            found.update(rank * (2**63 // ranks) + rank % width for rank in range(ranks))
        return frozenset(found)

    @cached_property
    def contradiction(self) -> str:
        """Why these cannot be the logs of one deployment; "" if they can.

        Two processes cannot listen at one address at a time: one log is a copy of the other, or of another deployment.
        """
        for address, other, one in self._at_one_address():
            if _overlap(one, other):
                return (
                    f"{other.name} and {one.name} are logs of two processes at {address} at the same time: one is a "
                    "copy of the other, or they are of two deployments; leave one out, or give each deployment a "
                    "directory of its own"
                )
        workers = [(router.name, self._listed(router)) for starts in self.history for router in starts]
        for (name, listed), (other_name, others) in combinations(workers, 2):
            if name != other_name and listed and others and listed.isdisjoint(others):
                return (
                    f"{name} and {other_name} are routers of two deployments, with no engine in common: "
                    f"{', '.join(sorted(listed))} and {', '.join(sorted(others))}; give each deployment a directory of "
                    "its own"
                )
        return ""

    @cached_property
    def succeeded(self) -> bool:
        """Whether two of the engines have had one address."""
        return any(one.role in ("prefill", "decode") for _, _, one in self._at_one_address())

    def _at_one_address(self) -> Iterator[tuple[str, ObservedInstance, ObservedInstance]]:
        """The address, the first process that had it, and each other one."""
        seen: dict[tuple[str, str], ObservedInstance] = {}
        for one in self.instances.values():
            addresses = [("rank", rank) for rank in sorted(one.ranks)]
            if one.port is not None and one.role in ("prefill", "decode", "router"):
                addresses += [("http", f"{host}:{one.port}") for host in sorted(one.hosts - WILDCARDS)]
            for key in addresses:
                other = seen.setdefault(key, one)
                if other is not one:
                    yield key[1], other, one

    def _listed(self, router: RouterWorkers) -> frozenset[str]:
        """The router's workers by their logs' names; none unless each of them has a log here."""
        found = [self.at_url(url) for url in (*(one.url for one in router.prefills), *router.decodes)]
        return frozenset() if router.cut or None in found else frozenset(one.name for one in found if one is not None)

    def at_url(self, url: str) -> ObservedInstance | None:
        """The engine that serves HTTP at `url`, if exactly one log can be that engine's."""
        address = parse_address(url)
        return None if address is None else self._known_owner(address, bootstrap=False)

    def bootstrap_owner(self, address: HostPort) -> ObservedInstance | None:
        """The prefill whose bootstrap server is at `address`, if exactly one log can be that prefill's."""
        return self._known_owner(address, bootstrap=True)

    def rank_owner(self, text: str) -> ObservedInstance | None:
        """The prefill with a rank whose KV manager is at `text` (`host:port`)."""
        owners = [one for one in self.prefills if text in one.ranks]
        return owners[0] if len(owners) == 1 else None

    def by_agent(self, name: str) -> ObservedInstance | None:
        owners = [one for one in self.decodes if name in one.agents]
        return owners[0] if len(owners) == 1 else None

    def complete(self) -> bool:
        """Whether every prefill on the routers' lists has a log here; False if there is no list."""
        return bool(self.routers) and all(
            not one.cut and len(one.prefills) <= len(self.prefills) for one in self.routers
        )

    def _known_owner(self, address: HostPort, *, bootstrap: bool) -> ObservedInstance | None:
        """Who owns the port. Kept: thousands of lines of each room ask for the same few addresses."""
        key = (bootstrap, address)
        if key not in self._owners:
            if len(self._owners) >= MOST_ADDRESSES:
                self._owners.clear()
            among = self.prefills if bootstrap else (*self.prefills, *self.decodes)
            self._owners[key] = self._owner(address, among, lambda one: one.bootstrap_port if bootstrap else one.port)
        return self._owners[key]

    def _owner(
        self, address: HostPort, among: Iterable[ObservedInstance], port: Callable[[ObservedInstance], int | None]
    ) -> ObservedInstance | None:
        if address.port is None:
            return None
        sure: list[ObservedInstance] = []
        perhaps: list[ObservedInstance] = []
        for one in among:
            if port(one) not in (address.port, None):
                continue
            here = one.listens_on(address.host)
            if here is False:
                continue
            (sure if here and port(one) is not None else perhaps).append(one)
        if len(sure) == 1:
            return sure[0]
        # On one machine only one process can have the port; on several, the log of its owner may not be here.
        alone = not sure and len(perhaps) == 1 and port(perhaps[0]) is not None
        return perhaps[0] if alone and (address.loopback or self.complete()) else None


def _count(text: str | None) -> int:
    return numerals.whole(text, RANKS) or 1


def _as_of(starts: Sequence[RouterWorkers], t: float) -> RouterWorkers:
    """The last start before `t`, or the first one if all are later."""
    before = [one for one in starts if one.start is None or one.start.t is None or one.start.t <= t]
    return before[-1] if before else starts[0]


def _instance(name: str, identity: Identity, starts: list[Event], end: LogEnd | None) -> ObservedInstance:
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
            address = parse_address(event.values.get("addr") or event.values.get("host", ""))
            hosts |= {address.host} - WILDCARDS if address is not None else set()
    told = numerals.whole(identity.facts.get("disaggregation_bootstrap_port"))
    return ObservedInstance(
        name, identity.role, identity, host, identity.port, identity.bootstrap_port,
        identity.bootstrap_port if told is None else told, frozenset(hosts), frozenset(ranks), frozenset(agents),
        tuple(event.t for event in starts if event.proves(Sign.STARTED) and event.t is not None),
        end.last if end else None, bool(end and end.clean), end.rows if end else (),
        any(event.proves(Sign.LAUNCHED) for event in starts),
    )  # fmt: skip


class RouterWorkers(NamedTuple):
    """start: the line that lists its workers, None if not found again. cut: the line does not list all prefills."""

    name: str
    prefills: tuple[ListedPrefill, ...]
    decodes: tuple[str, ...]
    start: Event | None
    cut: bool = False


def routers_of(name: str, identity: Identity, starts: Iterable[Event]) -> tuple[RouterWorkers, ...]:
    """One entry for each start of the router with different workers, in order; () if the log is no router's."""
    if not identity.prefills:
        return ()
    found: list[RouterWorkers] = []
    for event in starts:
        if not event.proves(Sign.WORKERS):
            continue
        told = _as_listed(name, identity, event)
        last = found[-1] if found else None
        if event.proves(Sign.DECODES_PRINTED):
            if last is not None and not last.decodes:
                found[-1] = last._replace(decodes=told.decodes)
            continue
        again = last is not None and (last.start is None or last.start.proves(Sign.WORKERS_REHEARSED))
        if again and event.proves(Sign.WORKERS_AGAIN):
            continue
        if last is not None and _same(last, told):
            found[-1] = _fuller(last, told)
        else:
            found.append(told)
    if found:
        return tuple(found)
    return (
        RouterWorkers(name, identity.prefills, identity.decodes, None, _cut(identity.facts.get("prefill", ""), None)),
    )


def _as_listed(name: str, identity: Identity, event: Event) -> RouterWorkers:
    listed = event.values.get("prefill", "")
    told = identity._replace(facts={"prefill": listed, "decode": event.values.get("decode", "")})
    return RouterWorkers(name, told.prefills, told.decodes, event, _cut(listed, event))


def _cut(listed: str, event: Event | None) -> bool:
    """Whether the list ends in dots or in the middle; dots inside a quoted URL only redact that URL."""
    rest = _QUOTED.sub("", listed)
    return "…" in rest or "..." in rest or (event is not None and f"{listed}]" not in event.text)


def _same(one: RouterWorkers, other: RouterWorkers) -> bool:
    """Whether two lines belong to one start; one of them may leave out the decodes, or be cut."""
    short, long = sorted((one.prefills, other.prefills), key=len)
    prefills = short == long or ((one.cut or other.cut) and long[: len(short)] == short)
    return prefills and (one.decodes == other.decodes or not one.decodes or not other.decodes)


def _fuller(one: RouterWorkers, other: RouterWorkers) -> RouterWorkers:
    """The first line, unless the second one contains more."""
    more = (one.cut and not other.cut) or (other.decodes and not one.decodes) or one.start is None
    if more or (one.start is not None and one.start.proves(Sign.WORKERS_PRINTED) and other.start is not None):
        return other._replace(decodes=other.decodes or one.decodes)
    return one


def sent_address(upstream: ListedPrefill, default_port: int | None) -> HostPort | None:
    """The host and port the router sends for this prefill, with the decode's own port in place of a null."""
    host = parse_address(upstream.url)
    port = upstream.port if upstream.port is not None else default_port
    return None if host is None or port is None else HostPort(host.host, port)


def sends_its_list(router: RouterWorkers, deployment: ObservedDeployment) -> bool:
    """Whether requests carry the ports of the list, and not what the router has learned from the prefills since."""
    instance = deployment.instances.get(router.name)
    known = adapter(instance.identity.speaker) if instance is not None else None
    rehearsed = router.start is not None and router.start.proves(Sign.WORKERS_REHEARSED)
    return known is None or not known.names_address or rehearsed


def on_hosts_of_their_own(prefills: Iterable[ListedPrefill]) -> bool | None:
    """Whether every prefill has its own host, as far as the URLs tell; None if a URL is redacted.

    A decode combines its own port with the host it was sent, so a null can lead to another prefill only on one host.
    """
    hosts = [address.host if address is not None else "" for address in (parse_address(one.url) for one in prefills)]
    if not all(_HOST.fullmatch(host) for host in hosts):
        return None
    return len({"localhost" if is_localhost(host) else host for host in hosts}) == len(hosts)


def router_command(deployment: ObservedDeployment) -> str:
    """A router command to paste, "" if not exactly one router's start line is known; unknown ports are placeholders."""
    if len(deployment.routers) != 1:
        return ""
    from pdctl.engines.kinds import router_words  # imported late: few causes are mended by this command
    from pdctl.program import portable

    router = deployment.routers[0]
    instance = deployment.instances.get(router.name)
    known = adapter(instance.identity.speaker) if instance else None
    prefills = []
    for upstream in router.prefills:
        owner = deployment.at_url(upstream.url)
        port = owner.bootstrap_port if owner else None
        prefills.append((upstream.url, port or f"{PLACEHOLDER}{upstream.url}>"))
    decodes = router.decodes or ("<URL of the decode>",)
    values = router.start.values if router.start is not None else {}
    words = router_words(
        known.kind if known is not None else "", prefills, decodes, values.get("host", ""), values.get("port", "")
    )
    return " ".join([*portable(words), *_policies(router)])


def _policies(router: RouterWorkers) -> list[str]:
    """The flags for its policies, as far as the start line shows them."""
    parts = []
    for flag, field in (("--prefill-policy", "prefill_policy"), ("--decode-policy", "decode_policy")):
        found = re.search(rf"{field}: Some\((\w+)", router.start.text) if router.start is not None else None
        if found and found[1] in POLICIES:
            parts.append(f"{flag} {POLICIES[found[1]]}")
    return parts


class HostPort(NamedTuple):
    """port None: null, or not written."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def parse_address(text: str) -> HostPort | None:
    """Parse `127.0.0.1:8998`, `[::1]:8998`, `http://host:30000/` or `tcp://host:1`; None for other text.

    A bootstrap address has no scheme and no user: what stands before an `@` came with a request, and no host is known.
    """
    if "@" in text and "://" not in text:
        return None
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        return HostPort(parts.hostname, parts.port) if parts.hostname else None
    except ValueError:
        return None


def same_host(one: str, other: str) -> bool:
    return one == other or (is_localhost(one) and is_localhost(other))


def is_mixed(log: Log, identity: Identity) -> bool:
    """Whether the log holds lines of several roles or processes and could not be split."""
    several = not identity.role and any(reason.startswith("several roles") for reason in identity.reasons)
    return log.mixed or several


def mixed_logs(library: Library) -> frozenset[str]:
    return frozenset(log.instance for log in library.logs if is_mixed(log, library.identity(log)))


def _overlap(one: ObservedInstance, other: ObservedInstance) -> bool:
    if not (one.started and other.started) or one.last is None or other.last is None:
        return False
    return one.started[0] < other.last and other.started[0] < one.last
