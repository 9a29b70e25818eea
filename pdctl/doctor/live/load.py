"""What the running engines' own numbers say about their load and capacity: PD410, PD501, PD502, PD506 and PD703."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names
from pdctl.engines.sglang.agreement import common_page_size
from pdctl.fleet import peer_json
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import ObservedEngine

FULL = 0.95  # of the KV pool
MANY = 100  # rooms in flight from which on a prefill counts as unable to hand over its KV
CROWD = 8  # rooms of a decode from which on a look between the two sides of a handover does not explain them
SHARE = 4  # at least one slot in this many must be usable


def small_pages(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD410: page size 1 with a backend that sends page by page. On a CPU it costs nothing."""
    expected = common_page_size(*(engine.number("page_size") for engine in facts.engines))
    found = [
        finding(
            "PD410",
            engine.endpoint.name,
            observed="page size 1",
            expected=str(expected),
            evidence=(f"{engine.endpoint.url}/server_info: page_size 1",),
            backend=server_info.backend(engine),
        )
        for engine in facts.engines
        if server_info.backend(engine) == "mooncake"
        and engine.number("page_size") == 1
        and not server_info.on_cpu(engine)
    ]
    return found or _read(facts)


def decode_full(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD501: rooms wait in a decode's prealloc queue while its KV pool is full."""
    found: list[Finding] = []
    for engine in facts.engines:
        waiting, usage = _queue(engine, "decode_prealloc_queue_reqs"), _usage(engine)
        if engine.endpoint.role != "decode" or not waiting or usage is None or usage < FULL:
            continue
        found.append(
            finding(
                "PD501",
                engine.endpoint.name,
                observed=f"{waiting:g} rooms wait, KV pool {usage:.0%} full",
                expected="no room waits for pages",
                short=f"{waiting:g} rooms wait while the KV pool of {engine.endpoint.name} is {usage:.0%} full",
                evidence=(_describe_load(engine, "decode_prealloc_queue_reqs", waiting, usage),),
                needed=sum(one.endpoint.role == "decode" for one in facts.engines) + 1,
            )
        )
    return found or _loaded(facts, "decode")


def prefill_full(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD506: a prefill holds the KV of many rooms because it cannot hand them over fast enough."""
    found: list[Finding] = []
    for engine in facts.engines:
        moving, usage = _queue(engine, "prefill_inflight_queue_reqs"), _usage(engine)
        if engine.endpoint.role != "prefill" or moving is None or moving < MANY or usage is None or usage < FULL:
            continue
        found.append(
            finding(
                "PD506",
                engine.endpoint.name,
                observed=f"{moving:g} rooms in transfer, KV pool {usage:.0%} full",
                expected=f"fewer than {MANY} rooms in transfer",
                short=f"{moving:g} rooms are in transfer, and {engine.endpoint.name} has a KV pool {usage:.0%} full",
                evidence=(_describe_load(engine, "prefill_inflight_queue_reqs", moving, usage),),
                needed=sum(one.endpoint.role == "prefill" for one in facts.engines) + 1,
            )
        )
    return found or _loaded(facts, "prefill")


def _describe_load(engine: ObservedEngine, queue: str, held: float, usage: float) -> str:
    return f"{engine.endpoint.url}: {queue} {held:g}, token_usage {usage:.2f}"


def rooms_without_prefill(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD703: a decode waits for the KV cache of many rooms while no prefill has any request.

    A health check answers all the same, and once such rooms hold every slot the decode takes no other until they time
    out.
    """
    rooms = {engine.endpoint.name: _rooms(engine) for engine in facts.engines}
    sides = {role: [one for one in facts.engines if one.endpoint.role == role] for role in ("prefill", "decode")}
    if not all(sides.values()):
        return Skipped(f"no {names([role for role, some in sides.items() if not some])} was given")
    silent = [name for name, held in rooms.items() if held is None]
    if silent:
        return Unknown(f"{names(silent)}: /v1/loads does not say how many rooms it has")
    if any(rooms[engine.endpoint.name] for engine in sides["prefill"]):
        return []
    crowded = [(engine, rooms[engine.endpoint.name] or 0.0) for engine in sides["decode"]]
    return [_without_prefill(engine, held, sides["prefill"]) for engine, held in crowded if held >= CROWD]


def _without_prefill(engine: ObservedEngine, held: float, prefills: list[ObservedEngine]) -> Finding:
    name, slots = engine.endpoint.name, _total(engine, "max_running_requests") or math.inf
    found = finding(
        "PD703",
        name,
        observed=f"{held:g} rooms wait for KV cache",
        expected="each room at a prefill too",
        evidence=(
            f"{engine.endpoint.url}/v1/loads: {held:g} rooms in the prealloc and transfer queues, {slots:g} slots",
            f"{names([one.endpoint.name for one in prefills])}: no request waits, runs or is handed over",
        ),
        severity=None if held + (_total(engine, "num_running_reqs") or 0.0) >= slots else Severity.WARNING,
    )
    full = "all its slots" if found.severity is Severity.ERROR else f"{held:g} rooms"
    headline = f"{name} holds {full} for requests that no prefill has: it waits for them to time out"
    fix = f"start {pasteable(name)} with --api-key, or close {pasteable(engine.endpoint.url)} to all but the router"
    return replace(found, headline=headline, fix=fix)


def _rooms(engine: ObservedEngine) -> float | None:
    """A prefill's requests that are not answered yet, or a decode's rooms that wait for KV cache; None if not told."""
    if engine.endpoint.role == "decode":
        return _sum(_told(engine, "decode_prealloc_queue_reqs"), _told(engine, "decode_transfer_queue_reqs"))
    bootstrap = _told(engine, "prefill_bootstrap_queue_reqs")
    if bootstrap is None:  # its name in sglang before 0.5.10
        bootstrap = _told(engine, "prefill_prealloc_queue_reqs")
    queued = _sum(bootstrap, _told(engine, "prefill_inflight_queue_reqs"))
    return _sum(queued, _total(engine, "num_waiting_reqs"), _total(engine, "num_running_reqs"))


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def slots(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD502: a decode that can use few or none of its slots."""
    decodes = [engine for engine in facts.engines if engine.endpoint.role == "decode"]
    return [one for engine in decodes for one in _slots(engine)] or _read(facts)


def _slots(engine: ObservedEngine) -> list[Finding]:
    limit, ranks = engine.number("max_running_requests"), server_info.dp_ranks(engine)
    pool, keep = engine.number("max_total_num_tokens"), engine.number("num_reserved_decode_tokens")
    if limit is None or ranks is None or ranks < 1:
        return []
    if limit < ranks:
        what = f"max_running_requests {limit} is divided by {ranks} DP ranks"
        return [
            _shortage(engine, what, "that leaves no slot on a rank", f"set --max-running-requests to {ranks} or more")
        ]
    usable = pool // keep if pool and keep else None
    each = max(1, limit // ranks)
    if usable is None or usable * SHARE >= each:
        return []
    what = f"{each} slots of a rank reserve {keep} tokens each"
    return [
        _shortage(engine, what, f"its KV pool holds {pool}", f"set --max-running-requests to {max(1, usable) * ranks}")
    ]


def _shortage(engine: ObservedEngine, observed: str, limit: str, fix: str) -> Finding:
    evidence = (f"{engine.endpoint.url}/server_info: {observed}",)
    expected = "slots whose reserve fits into the KV pool"
    name = engine.endpoint.name
    return finding("PD502", name, observed=observed, expected=expected, evidence=evidence, limit=limit, fix=fix)


def _queue(engine: ObservedEngine, name: str) -> float | None:
    """A queue's length summed over the DP ranks, from /v1/loads or else /metrics; None if neither has it."""
    told = _told(engine, name)
    return engine.metrics.get(f"sglang:num_{name}") if told is None else told


def _told(engine: ObservedEngine, name: str) -> float | None:
    known = [value for load in engine.loads if (value := _number(load.get("disaggregation"), name)) is not None]
    return sum(known) if known else None


def _total(engine: ObservedEngine, name: str) -> float | None:
    known = [value for load in engine.loads if (value := _number(load, name)) is not None]
    return sum(known) if known else None


def _usage(engine: ObservedEngine) -> float | None:
    """The KV pool usage of the fullest rank, 0 to 1. Metrics are summed, so they are used only with a single rank."""
    found = [value for load in engine.loads if (value := _number(load, "token_usage")) is not None]
    if found:
        return max(found)
    return engine.metrics.get("sglang:token_usage") if server_info.dp_ranks(engine) == 1 else None


def _number(place: object, name: str) -> float | None:
    return peer_json.number(place.get(name)) if isinstance(place, Mapping) else None


def _loaded(facts: Facts, role: str) -> list[Finding] | Skipped | Unknown:
    some = [engine for engine in facts.engines if engine.endpoint.role == role]
    silent = [engine.endpoint.name for engine in some if _usage(engine) is None]
    if silent:
        return Unknown(f"{names(silent)}: neither /v1/loads nor /metrics says how full it is")
    return [] if some else Skipped(f"no {role} was given")


def _read(facts: Facts) -> list[Finding] | Skipped | Unknown:
    silent = [engine.endpoint.name for engine in facts.engines if not engine.info]
    if silent:
        return Unknown(f"{names(silent)} could not be read")
    return [] if facts.engines else Skipped("no instance was given")


LIVE = (Needs.ENDPOINT,)
CHECKS = (
    Check("PD410", LIVE, small_pages),
    Check("PD501", LIVE, decode_full),
    Check("PD502", LIVE, slots),
    Check("PD506", LIVE, prefill_full),
    Check("PD703", LIVE, rooms_without_prefill),
)
