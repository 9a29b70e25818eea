"""What engines still hold: read until nothing is left, or the time is over."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.sglang.http import paths
from pdctl.engines.sglang.metrics import METRICS
from pdctl.fleet import exposition, peer_json
from pdctl.fleet.deadline import Deadline, map_within
from pdctl.fleet.observations import HeldRequests
from pdctl.fleet.prober import Prober

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.fleet.observations import Endpoint
    from pdctl.fleet.peer_json import Object

AT_ONCE = 48
PATIENCE = 5.0  # seconds for one look: the answer comes from the scheduler
AGAIN = 0.25  # seconds between looks at an engine that still holds something

# Counts of requests in /v1/loads, by section ("" is the entry itself), sglang 0.5.8 to 0.5.23.
LOADS = (
    ("", "num_running_reqs"),
    ("", "num_waiting_reqs"),
    ("queues", "grammar"),
    ("queues", "paused"),
    ("queues", "retracted"),
    ("disaggregation", "prefill_prealloc_queue_reqs"),  # to 0.5.8, then:
    ("disaggregation", "prefill_bootstrap_queue_reqs"),
    ("disaggregation", "prefill_inflight_queue_reqs"),
    ("disaggregation", "decode_prealloc_queue_reqs"),
    ("disaggregation", "decode_transfer_queue_reqs"),
    ("disaggregation", "decode_retracted_queue_reqs"),
)
OLD_LOADS = (("", "num_reqs"), ("", "num_waiting_reqs"))  # /get_load, 0.5.3
# The same in /metrics. Engines write these now and then only: what is read may be half a minute old.
GAUGES = tuple(dict.fromkeys(row.name for row in METRICS if row.queue))
NOW, METRICS_PATH, OLD = paths("loads")[0], *paths("metrics"), paths("loads")[-1]


def queues(
    engines: Sequence[Endpoint], deadline: float, *, patience: float = PATIENCE, key: str = "", at_once: int = AT_ONCE
) -> tuple[HeldRequests, ...]:
    """What each engine holds when it holds nothing any more, or after `deadline` seconds and a last look; in order."""
    whole = Deadline(deadline + patience)
    until = whole.within(deadline)
    probing = Prober(whole, patience, key)
    return map_within(lambda engine: _drained(engine, probing, until), engines, at_once, whole)


def _drained(engine: Endpoint, probing: Prober, until: Deadline) -> HeldRequests:
    pause = threading.Event()  # never set: a wait that ends with the deadline
    last = HeldRequests(engine.name, MappingProxyType({}), False)
    while (found := _held_requests(engine.url.rstrip("/"), probing)) is not None:
        held, late = found
        last = HeldRequests(engine.name, MappingProxyType(held), True, late)
        if late or not held or until.passed:  # a gauge that is written every half minute does not empty in time
            break
        pause.wait(min(AGAIN, until.left))
    return last


def _held_requests(url: str, probing: Prober) -> tuple[dict[str, float], bool] | None:
    """What it holds, and whether that may be old; None when it could not be read. Names are those of its place."""
    loads = probing.look(url, NOW)
    entries = peer_json.mappings(peer_json.mapping(loads.body).get("loads"))
    if loads.ok and entries:
        return _sum_over_ranks(entries, LOADS), False
    old = probing.look(url, OLD)
    entries = peer_json.mappings(old.body)
    if old.ok and entries:
        return _sum_over_ranks(entries, OLD_LOADS), False
    metrics = probing.ask(url, METRICS_PATH)
    if metrics.ok and (found := exposition.totals(metrics.text)).keys() & set(GAUGES):
        return {name: found[name] for name in GAUGES if found.get(name)}, True
    return None


def _sum_over_ranks(entries: Iterable[Object], keys: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Summed over the DP ranks; those that are not zero."""
    held: dict[str, float] = {}
    for entry in entries:
        for section, name in keys:
            place: Mapping[str, object] = peer_json.mapping(entry.get(section)) if section else entry
            value = peer_json.number(place.get(name))
            if value:
                held[name] = held.get(name, 0.0) + value
    return held
