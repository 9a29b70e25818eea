"""The load of instances, as each reports it: pages in use, rooms per queue, counters of its work and its traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.sglang.loads import LOAD_KEYS, QUEUES, TRAFFIC, key_of
from pdctl.fleet import engine_probe, peer_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.fleet.observations import Endpoint, ObservedEngine
    from pdctl.fleet.peer_json import Object


HELD_TOKENS = ("used_tokens", "pool_tokens", "waiting_prompt_tokens", *QUEUES)
AT_ONCE = 192  # instances: some that hang must not take the others' turns
MOST = 10**15  # of anything that is counted in tokens, rooms, steps or microseconds since the start
MOST_HELD = 10**11  # tokens in a KV pool, or waiting for an instance: those of 2,048 are still below MOST


def _no_figures() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """`role`: the one it has now, else the one it should have. `heard`: it told its load; else `reason` says why not.

    figures: meaning (engines/sglang/loads.py) → sum over the DP ranks; what no rank tells is missing. traffic: the
    same of the metrics that its role tells, sums since its start.
    """

    name: str
    url: str
    role: str
    heard: bool
    reason: str = ""
    page_size: int | None = None
    figures: Mapping[str, float] = field(default_factory=_no_figures)
    traffic: Mapping[str, float] = field(default_factory=_no_figures)

    @property
    def queues(self) -> dict[str, int]:
        """Rooms per queue, without the queues it does not tell of."""
        return {name: int(self.figures[name]) for name in QUEUES if name in self.figures}

    def pages(self, tokens: str) -> int | None:
        """The pages of a figure in tokens; None if it or the page size is not known."""
        count = self.figures.get(tokens)
        return None if count is None or not self.page_size else -(-int(count) // self.page_size)


def probe_loads(
    endpoints: Sequence[Endpoint], deadline: float, *, metrics: bool = True, patience: float, key: str = ""
) -> tuple[InstanceLoad, ...]:
    """The load of each endpoint, in order, within `deadline` seconds. `metrics`: ask for its traffic too."""
    wanted = ("loads", "metrics") if metrics else ("loads",)
    found = engine_probe.probe_engines(endpoints, deadline, patience=patience, wanted=wanted, key=key, at_once=AT_ONCE)
    return tuple(map(read_load, found))


def read_load(engine: ObservedEngine) -> InstanceLoad:
    endpoint = engine.endpoint
    figures = _sums(engine.loads)
    reason = _contradiction(figures) if figures else _silence(engine)
    role = engine.mode if engine.mode in ("prefill", "decode") else endpoint.role
    page_size = engine.number("page_size")
    return InstanceLoad(
        endpoint.name,
        endpoint.url,
        role,
        not reason,
        reason,
        page_size if page_size and page_size > 0 else None,
        MappingProxyType({}) if reason else figures,
        MappingProxyType(
            {
                one.meaning: engine.metrics[one.name]
                for one in TRAFFIC
                if one.role == role and one.name in engine.metrics
            }
        ),
    )


def _sums(ranks: Sequence[Object]) -> Mapping[str, float]:
    """Every key of a meaning that a rank has, but not what is negative: -1 stands for what it does not know."""
    found: dict[str, float] = {}
    for rank in ranks:
        for key in LOAD_KEYS:
            value = (peer_json.mapping(rank.get(key.section)) if key.section else rank).get(key.name)
            if key.at is not None:
                value = value[key.at] if isinstance(value, list) and len(value) > key.at else None
            told = peer_json.number(value)
            if told is not None and told >= 0:
                found[key.meaning] = found.get(key.meaning, 0.0) + told
    return MappingProxyType(found)


def _contradiction(figures: Mapping[str, float]) -> str:
    """Why the figures cannot be believed, "" if they can."""
    used, pool = figures.get("used_tokens", 0.0), figures.get("pool_tokens", 0.0)
    if not pool:
        return "/v1/loads does not say how large its KV pool is"
    if used > pool:
        return f"/v1/loads says that {used:,.0f} of {pool:,.0f} tokens are in use"
    most = {name: MOST_HELD if name in HELD_TOKENS else MOST for name in figures}
    absurd = next((name for name, value in figures.items() if value > most[name]), None)
    if absurd is None:
        return ""
    return f"/v1/loads says that {key_of(absurd)} is {figures[absurd]:.3g}, and more than {most[absurd]:.0e} is absurd"


def _silence(engine: ObservedEngine) -> str:
    """Why an instance told no load, in words."""
    if not engine.reached:
        return engine.reason or "no answer"
    refused = next((one for one in engine.replies if one.path.endswith("loads") and not one.ok), None)
    if refused is not None:
        return f"{refused.path} answered {refused.status}: {refused.reason}" if refused.status else refused.reason
    return engine.reason or "/v1/loads answered with something that is no load"
