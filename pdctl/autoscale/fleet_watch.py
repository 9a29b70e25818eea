"""A fleet as a scaling policy sees it: look after look at its instances and its router, each made an observation.

The figures are those of each instance's /v1/loads and /metrics. A router tells which instances there are and which of
them it sends to. An instance that does not answer within the time of a look keeps its last figures and is named.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.fleet.address import Unanswered, parse
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.load_probe import InstanceLoad, probe_loads
from pdctl.fleet.router_probe import probe_router
from pdctl.json_records import LARGEST, SMALLEST
from pdctl.policy.observation import (
    COUNTERS,
    MeasuredTraffic,
    Observation,
    QueueDepths,
    ReplicaLoad,
    counter_gain,
    read_counters,
)
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.fleet.observations import Endpoint, ObservedRouter, RouterWorker

ENOUGH = 1000  # prompt tokens since their start after which the instances' mean rate tells more than their warm-up
SHARE = 0.5  # of the time of the first look, for a router that has to say first which instances there are
MOST_NAMES = 10_000  # instances of a router that keep their names after they have left
STATES = {"prefill": ReplicaState.PREFILL, "decode": ReplicaState.DECODE}


class FleetLook(NamedTuple):
    """`observation`: None while nothing is known of any instance. `notes`: what could not be read, in sentences."""

    observation: Observation | None
    notes: tuple[str, ...]


class HeardLoad(NamedTuple):
    """What an instance told, and at which look (seconds since the first)."""

    load: InstanceLoad
    at_s: float


class FleetWatch:
    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        router: str,
        list_workers: Callable[[ObservedRouter], Sequence[Endpoint]],
        *,
        timeout: float,
        key: str = "",
    ) -> None:
        """`endpoints`: () for the router's workers, as `list_workers` names them. `timeout`: seconds for one look."""
        self._endpoints, self._router, self._list_workers = tuple(endpoints), router, list_workers
        self._of_router = not endpoints
        self._timeout, self._key = timeout, key
        self._names: dict[str, str] = {}  # of a router's workers, by URL: a name stays with its instance
        self._heard: dict[str, HeardLoad] = {}  # by name, of the instances of the last look
        self._replicas: tuple[ReplicaLoad, ...] = ()  # of the last look
        self._looked_s: float | None = None  # when that was
        self._measured = MeasuredTraffic()
        self._prefill_rate: float | None = None
        self._ingress_rate: float | None = None

    def look(self, time_s: float) -> FleetLook:
        """The fleet now. `time_s`: seconds since the first look."""
        whole, notes = Deadline(self._timeout), list[str]()
        with ThreadPoolExecutor(1, "router") as pool:
            within = self._timeout if self._endpoints else self._timeout * SHARE
            asked = pool.submit(probe_router, self._router, within, key=self._key) if self._router else None
            loads = self._probe(whole)
            router = asked.result() if asked is not None else None
        workers = self._read_router(router, notes)
        if not loads:
            loads = self._probe(whole)
        earlier, self._heard = self._heard, {}
        known = [self._known(load, earlier.get(load.name), time_s, notes) for load in loads]
        if not self._heard:
            return FleetLook(None, (*notes, "no instance has told its load yet"))
        page = _page_size(known)
        replicas = tuple(
            _replica(last, load.heard and _sent_to(load, workers, notes), load.heard, page)
            for load, last in zip(loads, known, strict=True)
        )
        notes += _without_ready(replicas)
        self._measure(earlier, replicas, time_s)
        self._replicas, self._looked_s = replicas, time_s
        return FleetLook(self._observation(replicas, page, time_s), tuple(notes))

    def _probe(self, whole: Deadline) -> tuple[InstanceLoad, ...]:
        if not self._endpoints:
            return ()
        return probe_loads(self._endpoints, whole.left, patience=self._timeout, key=self._key)

    def _read_router(self, router: ObservedRouter | None, notes: list[str]) -> Mapping[str, RouterWorker] | None:
        """The router's workers by URL; None if there is no router, or it lists none. They are the next look's fleet."""
        if router is None:
            return None
        if not router.workers:
            notes.append(f"router {router.url}: {router.reason or 'it lists no workers'}")
            return None
        if self._of_router:
            listed = tuple(_addressed(self._list_workers(router), router.url, notes))
            self._endpoints = tuple(self._named(one) for one in listed)
        counts = Counter(one.url for one in router.workers)
        if several := [url for url, count in counts.items() if count > 1]:
            rest = len(several) - 1
            others = f" and {rest} other{'s' if rest > 1 else ''}" if rest else ""
            notes.append(f"router {router.url}: it lists {several[0]}{others} more than once; each counts once")
        # Of several entries of a worker a healthy one tells: the router sends to it.
        return {one.url: one for one in sorted(router.workers, key=lambda one: one.healthy)}

    def _named(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.url not in self._names:
            if len(self._names) > MOST_NAMES:
                self._names = {one.url: one.name for one in self._endpoints}
            taken, number = set(self._names.values()), 0
            while (name := f"{endpoint.role}-{number}") in taken:
                number += 1
            self._names[endpoint.url] = name
        return replace(endpoint, name=self._names[endpoint.url])

    def _known(self, load: InstanceLoad, last: HeardLoad | None, time_s: float, notes: list[str]) -> InstanceLoad:
        """What is known of an instance: what it told now, else what it told last, which is noted."""
        if load.heard:
            self._heard[load.name] = HeardLoad(load, time_s)
            if last is None:  # said once: it will not learn it
                notes += [f"{_named(load)}: {what}" for what in _lacking(load)]
            return load
        age = f"; its figures are {time_s - last.at_s:.3g} s old" if last is not None else ""
        notes.append(f"{_named(load)}: {load.reason}{age}")
        if last is None:
            return load
        self._heard[load.name] = last
        return last.load

    def _measure(self, earlier: Mapping[str, HeardLoad], replicas: tuple[ReplicaLoad, ...], time_s: float) -> None:
        """Rates and means since the last look; lengths and rates at the first since the instances' start.

        Where nothing was counted, lengths and rates stay as measured last; latencies belong to their moment.
        """
        now = {name: heard.load.traffic for name, heard in self._heard.items() if heard.at_s == time_s}
        before = {name: heard.load.traffic for name, heard in earlier.items() if heard.at_s == self._looked_s}
        gains = means = _gains(now, before)
        counters = read_counters(replicas, *COUNTERS["prefill_tokens_per_s"])
        start, spent, enough = read_counters(self._replicas, *COUNTERS["prefill_tokens_per_s"]), 0.0, 1
        if self._looked_s is not None:
            spent = time_s - self._looked_s
        else:
            means = _gains(now, {name: dict.fromkeys(traffic, 0.0) for name, traffic in now.items()})
            start, enough = dict.fromkeys(counters, (0, 0.0)), ENOUGH
        if means.get("prompt_tokens", 0.0) < enough:
            means = {}
        last, cached = self._measured, _mean(means, "cached_tokens", "prompt_tokens")
        self._measured = MeasuredTraffic(
            requests_per_s=_ratio(gains["requests"], spent) if "requests" in gains else None,
            prompt_tokens=_above(_mean(means, "prompt_tokens", "requests")) or last.prompt_tokens,
            output_tokens=_above(_mean(means, "output_tokens", "answers")) or last.output_tokens,
            cached_share=last.cached_share if cached is None else min(1.0, cached),
            ttft_s=_mean(gains, "ttft_s", "ttft_count"),
            itl_s=_mean(gains, "itl_s", "itl_count"),
        )
        # Every prompt's KV cache moves, whether it was computed or found in the prefix cache.
        moving_s = means.get("moving_ms", 0.0) / 1e3
        self._ingress_rate = _above(_ratio(means.get("prompt_tokens", 0.0), moving_s)) or self._ingress_rate
        tokens, busy = counter_gain(start, counters) or (0, 0.0)
        if tokens >= enough:
            self._prefill_rate = _above(_ratio(tokens, busy)) or self._prefill_rate

    def _observation(self, replicas: tuple[ReplicaLoad, ...], page: int, time_s: float) -> Observation:
        prefills = [one for one in replicas if one.state is ReplicaState.PREFILL]
        decodes = [one for one in replicas if one.state is ReplicaState.DECODE]
        pools = [one.kv_blocks for one in decodes if one.kv_blocks] or [
            one.kv_blocks for one in replicas if one.kv_blocks
        ]
        return Observation(
            prefills=len(prefills),
            decodes=len(decodes),
            waiting_prompt_tokens=sum(one.waiting_prompt_tokens for one in prefills),
            kv_blocks_used=sum(one.kv_blocks_used for one in replicas),
            kv_blocks_used_on_prefill=sum(one.kv_blocks_used for one in prefills),
            block_tokens=page,
            kv_blocks_per_replica=min(pools, default=1),
            prefill_tokens_per_s=self._prefill_rate,
            kv_ingress_tokens_per_s=self._ingress_rate,
            time_s=time_s,
            measured=self._measured,
            replicas=replicas,
        )


def _addressed(listed: Sequence[Endpoint], router: str, notes: list[str]) -> Iterator[Endpoint]:
    """Each of them once, without those that have no address, which are noted."""
    seen, bad = set[str](), list[str]()
    for one in listed:
        if one.url in seen:
            continue
        seen.add(one.url)
        try:
            parse(one.url)
        except Unanswered:
            bad.append(one.url)
            continue
        yield one
    if bad:
        who = f"{len(bad)} of its workers have" if len(bad) > 1 else "1 of its workers has"
        left = "are left out, such as" if len(bad) > 1 else "is left out:"
        notes.append(f"router {router}: {who} no http:// or https:// address and {left} `{bad[0]}`")


def _named(load: InstanceLoad) -> str:
    return f"{load.name} ({load.url})"


def _lacking(load: InstanceLoad) -> Iterator[str]:
    """What an instance that tells its load does not tell, and what follows."""
    if load.role == "prefill" and "waiting_prompt_tokens" not in load.figures:
        yield "this release does not say how many prompt tokens wait; its backlog counts as 0"
    if not load.traffic:
        yield "/metrics tells nothing of requests and their lengths; SGLang has it with --enable-metrics"


def _without_ready(replicas: Sequence[ReplicaLoad]) -> Iterator[str]:
    """What no policy says."""
    for role, state in STATES.items():
        if not any(one.ready for one in replicas if one.state is state):
            yield f"no {role} is ready: the fleet serves no request"


def _page_size(loads: Sequence[InstanceLoad]) -> int:
    """The page size in which blocks are counted: that of most decodes, else of most instances; 1 if none tells it."""
    decodes = Counter(one.page_size for one in loads if one.page_size and one.role == "decode")
    every = decodes or Counter(one.page_size for one in loads if one.page_size)
    return max(every, key=lambda size: (every[size], size)) or 1 if every else 1


def _sent_to(load: InstanceLoad, workers: Mapping[str, RouterWorker] | None, notes: list[str]) -> bool:
    """Whether the router, if there is one, sends requests to the instance; a note if it does not."""
    if workers is None:
        return True
    worker = workers.get(load.url.rstrip("/"))
    if worker is not None and worker.healthy:
        return True
    if worker is None:
        why = "does not list it"
    elif worker.health_known:
        why = f"calls it unhealthy{worker.reason and f': {worker.reason}'}"
    else:
        why = "does not say whether it is healthy (`is_healthy` in /workers)"
    notes.append(f"{_named(load)}: the router {why}")
    return False


def _replica(load: InstanceLoad, ready: bool, heard: bool, page: int) -> ReplicaLoad:
    """`heard`: its counters are those of now; old ones would look like an idle instance."""
    figures, queues = load.figures, load.queues
    now = figures if heard else {}
    return ReplicaLoad(
        name=load.name,
        state=STATES[load.role],
        ready=ready,
        kv_blocks_used=-(-int(figures.get("used_tokens", 0)) // page),
        kv_blocks=int(figures.get("pool_tokens", 0)) // page,
        waiting_prompt_tokens=int(figures.get("waiting_prompt_tokens", 0)) if load.role == "prefill" else 0,
        running_rooms=queues.get("running", 0),
        queues=QueueDepths(
            bootstrap=queues.get("bootstrap", 0) if load.role == "prefill" else 0,
            waiting=queues.get("waiting", 0),
            inflight=queues.get("inflight", 0),
            prealloc=queues.get("prealloc", 0),
            transfer=queues.get("transfer", 0),
        ),
        prefilled_tokens=_whole(now, "prefilled_tokens"),
        prefill_busy_s=_seconds(now, "prefill_busy_us"),
        decode_steps=_whole(now, "decode_steps") if load.role == "decode" else None,
        decode_busy_s=_seconds(now, "decode_busy_us") if load.role == "decode" else None,
    )


def _whole(figures: Mapping[str, float], name: str) -> int | None:
    return int(figures[name]) if name in figures else None


def _seconds(figures: Mapping[str, float], name: str) -> float | None:
    return figures[name] / 1e6 if name in figures else None


def _gains(now: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What each counter has grown by, summed over the instances that have it at both times.

    An instance of which one has fallen was started again, and is left out.
    """
    found: dict[str, float] = {}
    for name, counters in now.items():
        earlier = before.get(name, {})
        both = [(meaning, value, earlier[meaning]) for meaning, value in counters.items() if meaning in earlier]
        if all(value >= was for _, value, was in both):
            for meaning, value, was in both:
                found[meaning] = found.get(meaning, 0.0) + value - was
    return found


def _mean(gains: Mapping[str, float], total: str, count: str) -> float | None:
    """The mean, None if nothing was counted."""
    return _ratio(gains.get(total, 0.0), gains.get(count, 0.0))


def _ratio(amount: float, per: float) -> float | None:
    """The quotient; None if it is none, or larger than an observation may have it."""
    found = amount / per if per > SMALLEST else LARGEST + 1
    return found if found <= LARGEST else None


def _above(found: float | None) -> float | None:
    """What is so small that an observation would refuse it is not measured."""
    return found if found is not None and found >= SMALLEST else None
