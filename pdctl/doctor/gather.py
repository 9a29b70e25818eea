"""Gather the facts that the selected checks need, from probes and the logs of a run, within one deadline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pdctl.catalogue.entry import Needs
from pdctl.doctor import request as asking
from pdctl.doctor import server_info
from pdctl.doctor.bootstrap_ports import address, bootstrap_claims, fan_out, host_key, port_claims
from pdctl.doctor.check import Depth, Facts
from pdctl.doctor.live.logs import OFTEN, is_of_set_up
from pdctl.doctor.request import Progress
from pdctl.engines.base import Sign
from pdctl.engines.pdctl.own_adapters import names_canary
from pdctl.engines.sglang.faults import RunningRelease, hits
from pdctl.fleet import canary_probe, listeners
from pdctl.fleet.canary_probe import Prompt, Side
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.observations import CANCEL, N2, SignatureLine
from pdctl.loopback import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from pdctl.doctor.request import Request
    from pdctl.fleet.observations import Bootstrap, Canary, Endpoint, HeldRequests, Host, ObservedEngine, ObservedRouter
    from pdctl.logs.event import Event
    from pdctl.logs.library import Library


T = TypeVar("T")
EVERYTHING = frozenset(Needs)
LIVE = frozenset({Needs.ENDPOINT, Needs.ROUTER, Needs.HOST, Needs.CANARY})
SHARE = 0.6  # of the time left, for router and engines; the bootstrap servers get the rest
LEAST = 1.0  # seconds that the bootstrap servers get in any case
ROUNDS = 3  # ask a bootstrap server, ask for its ranks, dial them: one that hangs must not use up the time
LONGEST = 3.0  # seconds for one answer of a bootstrap server
COUNTED = frozenset({Sign.REQUEST_ANSWERED, Sign.READY})
CUT = 300  # characters kept of a line
MOST_ROOMS = 64  # kept of those that lines of one kind name
# Real requests: which are sent, and what they carry.
WHOLE = 180.0  # seconds for all pairs together
DRAIN = 10.0  # seconds within which the queues must become empty
EXTRA_LEAST = 5.0  # seconds that an extra may take in any case
EXTRA_TIMES = 10.0  # times as long as the pair's request that it may take
BEYOND = 64  # tokens above a limit
MOST_TOKENS = 1_000_000  # tokens; a limit above this is not tested with an over-long prompt
# Kinds of canary that must not be sent to a release with that fault (engines/sglang/faults.py), because they end a
# thread or a process of the prefill.
HARM: dict[str, tuple[str, ...]] = {
    "abort-kills-bootstrap-thread": (CANCEL, N2),
    "samples-end-prefill": (N2,),
}
PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
PLAIN_IDS = tuple(range(5, 17))  # for engines without a tokenizer: any valid ids will do


def gather(request: Request, needs: frozenset[Needs] = EVERYTHING) -> Facts:
    """The facts of `request`. `needs`: see check_run.needed. A server that is down is a fact and raises nothing."""
    facts = Facts(
        topology=request.topology,
        plan=request.plan,
        manifest=request.manifest,
        endpoints=request.endpoints or (asking.planned(request.plan) if request.plan is not None else ()),
        depth=request.depth,
        run=request.run,
        proxy_variable=next((name for name in PROXY_VARIABLES if request.environ.get(name)), ""),
        ended=request.ended,
    )
    with ThreadPoolExecutor(4, "doctor") as pool:
        logs = None
        if request.logs and Needs.LOG in needs:
            logs = pool.submit(read_logs, request.logs, request.names, request.progress, request.since)
        if request.depth is not Depth.STATIC and not needs.isdisjoint(LIVE):
            facts = _live(request, needs, facts, pool)
        if logs is not None:
            lines, logged = logs.result()
            facts = replace(facts, logs=lines, logged=logged)
    return replace(facts, asked=_needs_to_probe(request, needs))


def _needs_to_probe(request: Request, needs: frozenset[Needs]) -> tuple[Needs, ...]:
    live = request.depth is not Depth.STATIC
    reachable = live and bool(request.endpoints or request.router or request.plan)
    there = {
        Needs.TOPOLOGY: request.topology is not None or request.manifest is not None,
        Needs.ENDPOINT: reachable,
        Needs.ROUTER: live and bool(_router_url(request)),
        Needs.HOST: live and request.host,
        Needs.CANARY: request.depth is Depth.CANARY and reachable,
        Needs.LOG: bool(request.logs),
    }
    return tuple(need for need in Needs if there[need] and need in needs)


def _router_url(request: Request) -> str:
    if request.router:
        return request.router
    return asking.planned_router(request.plan) if request.plan is not None else ""


def _live(request: Request, needs: frozenset[Needs], facts: Facts, pool: ThreadPoolExecutor) -> Facts:
    watch = Deadline(request.deadline)
    address = _router_url(request)
    wanted = Needs.ROUTER in needs or not facts.endpoints
    routing = pool.submit(_router, request, address, watch.left * SHARE) if address and wanted else None
    if not facts.endpoints and routing is not None:
        facts = replace(facts, endpoints=asking.listed_endpoints(routing.result()))
    engines = _engines(request, facts.endpoints, max(LEAST, watch.left * SHARE))
    looking = pool.submit(_host, request, facts, engines) if request.host and Needs.HOST in needs else None
    facts = replace(facts, engines=engines, router=_result_of(routing))
    facts = replace(facts, bootstraps=_bootstraps(request, facts, max(LEAST, watch.left)))
    facts = replace(facts, host=_result_of(looking), elsewhere=listeners.in_other_networks(request.own))
    return _canaries(request, facts) if Needs.CANARY in needs and request.depth is Depth.CANARY else facts


def _result_of(future: Future[T] | None) -> T | None:
    return None if future is None else future.result()


def _router(request: Request, url: str, seconds: float) -> ObservedRouter:
    from pdctl.fleet.router_probe import probe_router  # late: a static run probes nothing

    plan = request.plan
    ours = plan is not None and url == asking.planned_router(plan)
    metrics = request.router_metrics or (asking.planned_metrics(plan) if plan is not None and ours else "")
    found = probe_router(url, seconds, metrics_url=metrics, key=request.key)
    request.progress(Progress("router", 1, 1))
    return found


def _engines(request: Request, endpoints: tuple[Endpoint, ...], seconds: float) -> tuple[ObservedEngine, ...]:
    from pdctl.fleet.engine_probe import probe_engines  # late, as above

    if not endpoints:
        return ()
    request.progress(Progress("instances", 0, len(endpoints)))
    found = probe_engines(endpoints, seconds, generate=request.depth is Depth.CANARY, key=request.key)
    request.progress(Progress("instances", len(found), len(endpoints)))
    return found


def _bootstraps(request: Request, facts: Facts, seconds: float) -> tuple[Bootstrap, ...]:
    from pdctl.fleet.bootstrap_probe import probe_bootstraps  # late, as above

    claims = bootstrap_claims(facts)
    if not claims:
        return ()
    request.progress(Progress("bootstrap servers", 0, len(claims)))
    patience = min(LONGEST, seconds / ROUNDS)
    seen = probe_bootstraps([claim.where for claim in claims], seconds, patience=patience)
    request.progress(Progress("bootstrap servers", len(seen), len(claims)))
    return fan_out(claims, seen)


def _host(request: Request, facts: Facts, engines: tuple[ObservedEngine, ...]) -> Host:
    from pdctl.fleet.host_probe import probe_host  # late, as above

    local = facts.plan is not None and facts.plan.target == "local"
    ports = {port.port for one in (facts.plan.instances if facts.plan and local else ()) for port in one.ports}
    ports |= {address(one.endpoint.url)[1] for one in engines if not one.info and _loopback(one.endpoint.url)}
    router = _router_url(request)
    ports = (ports | ({address(router)[1]} if router and _loopback(router) else set())) - {0}
    found = probe_host(ports, request.environ, engines=engines, packages=True, own=request.own, folders=request.folders)
    request.progress(Progress("this host", 1, 1))
    return found


def _loopback(url: str) -> bool:
    """Whether `url` is on loopback: only then is a port of this host known to be the one that was probed."""
    return host_key(address(url)[0]) == "127.0.0.1"


def _canaries(request: Request, facts: Facts) -> Facts:

    sent, left = send(request, facts)
    return replace(facts, canaries=sent, queues=left)


def read_logs(
    paths: Sequence[str],
    names: Mapping[str, str],
    progress: Callable[[Progress], None],
    since: float | None = None,
) -> tuple[tuple[SignatureLine, ...], tuple[str, ...]]:
    """The lines since `since` (epoch seconds) that name a cause, and the instances whose logs were read.

    Raise UsageError if a path cannot be read.
    """
    from pdctl.logs.library import Library  # late: it compiles every dialect
    from pdctl.logs.source import open_logs

    logs = {log.instance: log for log in open_logs(paths, names=names)}
    progress(Progress("logs", 0, len(logs)))
    events = Library(tuple(logs.values()), since=since).said(
        lambda row: bool(row.cause) or Sign.ORDERED_TO_END in row.proves
    )
    # A line without a time, such as one of a traceback, may be of any age.
    found = count_signatures(event for event in events if since is None or event.t is not None)
    progress(Progress("logs", len(logs), len(logs)))
    return tuple(
        replace(line, answered=_answered(Library((logs[line.instance],), since=since), line.count * OFTEN))
        if is_of_set_up(line.code)
        else line
        for line in found
    ), tuple(logs)


def _answered(library: Library, enough: int) -> int:
    """The number of requests answered with 200 since the instance last became ready, counted up to `enough`."""
    count = 0
    for event in library.said(lambda row: not COUNTED.isdisjoint(row.proves)):
        if event.proves(Sign.READY):
            count = 0  # the requests before were its own
        elif event.values.get("status") == "200":
            count += 1
        if count >= enough:
            break
    return count


def count_signatures(events: Iterable[Event]) -> tuple[SignatureLine, ...]:
    """One line per instance, code and worker it is about: the first, with the number of such lines.

    Left out are echoes, which name effects, lines caused by doctor's own canaries, and children that ended because
    their parent was ordered to stop.
    """
    from pdctl.logs.log_sample import is_ordered_end  # late: a static run reads no log

    kept: dict[tuple[str, str, str], SignatureLine] = {}
    rooms: dict[tuple[str, str, str], set[int | None]] = {}
    orders: dict[str, Event] = {}
    for event in events:
        if event.proves(Sign.ORDERED_TO_END):
            orders[event.instance] = event
        if not event.row.cause or event.row.echo or names_canary(event.text, event.room):
            continue
        if is_ordered_end(event, orders.get(event.instance)):
            continue
        about = event.values.get("url", "")
        key = (event.instance, event.row.cause, about)
        if len(named := rooms.setdefault(key, set())) <= MOST_ROOMS:
            named.add(event.room)
        first = kept.get(key)
        if first is not None:
            at = first.at if first.at is not None else event.t
            kept[key] = replace(
                first,
                count=first.count + 1,
                room=first.room if first.room is not None else event.room,
                at=at,
                seconds=first.seconds if event.t is None or at is None else max(first.seconds, event.t - at),
            )
        else:
            text = event.text.strip()[:CUT]
            kept[key] = SignatureLine(
                event.instance, event.row.cause, str(event.place), text, event.room, about=about, at=event.t,
                by_router=event.role == "router",
            )  # fmt: skip
    return tuple(replace(line, rooms=_all_rooms(rooms[key])) for key, line in kept.items())


def _all_rooms(named: Iterable[int | None]) -> frozenset[int]:
    known = frozenset(room for room in named if room is not None)
    return known if None not in named and len(known) <= MOST_ROOMS else frozenset()


def send(request: Request, facts: Facts) -> tuple[tuple[Canary, ...], tuple[HeldRequests, ...]]:
    """One request per pair, then the extras on the first pair that works, then what is left in the queues."""
    prefills, decodes = sides(facts)
    if not prefills or not decodes:
        return (), ()
    prompt = Prompt(ids=PLAIN_IDS) if any(engine.info.get("skip_tokenizer_init") for engine in facts.engines) else None
    counter = Counter(request, len(prefills) * len(decodes))
    cells = canary_probe.matrix(
        prefills,
        decodes,
        WHOLE,
        prompt=prompt,
        patience=request.canary_deadline,
        key=request.key,
        told=counter.told,
    )
    working = next((cell for cell in cells if cell.ok), None)
    more: tuple[Canary, ...] = ()
    if working is not None and request.extras:
        prefill = next(side for side in prefills if side.name == working.prefill)
        decode = next(side for side in decodes if side.name == working.decode)
        more = canary_probe.extras(
            prefill,
            decode,
            WHOLE,
            kinds=kinds([one for one in facts.engines if one.endpoint.name in (prefill.name, decode.name)]),
            too_long=too_long([one for one in facts.engines if one.endpoint.name in (prefill.name, decode.name)]),
            prompt=prompt,
            patience=min(request.canary_deadline, max(EXTRA_LEAST, EXTRA_TIMES * working.seconds)),
            key=request.key,
        )
        request.progress(Progress("other canaries", len(more), len(more)))
    return (*cells, *more), canary_probe.queues(facts.endpoints, DRAIN, key=request.key)


def kinds(engines: Sequence[ObservedEngine]) -> tuple[str, ...]:
    """The kinds of canary to send; one that breaks the release of any of `engines` is left out."""
    harmful: set[str] = set()
    for engine in engines:
        release = None if server_info.embedded(engine) else server_info.release(engine)
        if release is not None:
            # It is the prefill that is harmed, and both sides run the same release.
            faulty = {hit.fault.id for hit in hits(RunningRelease(release, "prefill", server_info.backend(engine)))}
            harmful.update(kind for fault, some in HARM.items() if fault in faulty for kind in some)
    return tuple(kind for kind in canary_probe.EXTRAS if kind not in harmful)


class Counter:
    """Counts finished cells, which end on several threads, and reports progress."""

    def __init__(self, request: Request, total: int) -> None:
        self._request, self._total, self._done = request, total, 0
        self._lock = threading.Lock()

    def told(self, _: Canary) -> None:
        with self._lock:
            self._done += 1
            self._request.progress(Progress("canary pairs", self._done, self._total))


def sides(facts: Facts) -> tuple[list[Side], list[Side]]:
    """The prefills, with the bootstrap host and port that a request would carry, and the decodes."""
    prefills = [
        Side(claim.prefill, claim.url, bracketed(claim.host), claim.router if claim.routed else claim.truth)
        for claim in port_claims(facts, True).claims
    ]
    decodes = [Side(one.name, one.url) for one in facts.endpoints if one.role == "decode"]
    return prefills, decodes


def too_long(engines: Sequence[ObservedEngine]) -> int | None:
    """A number of tokens that no engine may accept; None if a limit is unknown or too large to test."""
    limits = [limit for engine in engines if (limit := server_info.longest(engine)) is not None]
    if len(limits) < len(engines) or not limits or max(limits) > MOST_TOKENS:
        return None
    return max(limits) + BEYOND
