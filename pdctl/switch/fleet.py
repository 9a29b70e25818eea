"""The fleet as it is before a switch: the routers, the instance, and everybody else behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pdctl.fleet import document
from pdctl.fleet.engines import probe_engines
from pdctl.fleet.facts import Endpoint
from pdctl.fleet.routers import probe_router

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.fleet.facts import Engine, Router, RouterWorker
    from pdctl.switch.order import Order

LOOK = 30.0  # seconds for the whole fleet
EMBEDDED = "sglang_compat"  # only pdctl's own engine says so


class Member(NamedTuple):
    """An instance: what it says of itself, and each router's entry for it, None where it has none."""

    name: str
    url: str
    engine: Engine
    listed: tuple[RouterWorker | None, ...]

    @property
    def role(self) -> str:
        """As it is now."""
        return self.engine.mode

    @property
    def healthy(self) -> bool:
        return self.engine.health is not None and self.engine.health.ok

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def embedded(self) -> bool:
        return EMBEDDED in self.engine.info

    @property
    def states(self) -> tuple[Mapping[str, object], ...]:
        """Of its schedulers."""
        return document.mappings(self.engine.info.get("internal_states"))

    @property
    def bootstrap_port(self) -> int | None:
        return self.engine.number("disaggregation_bootstrap_port")

    @property
    def ranks(self) -> int:
        """How many register at its bootstrap server when it is a prefill."""
        sizes = (self.engine.number(name) or 1 for name in ("tp_size", "pp_size", "dp_size"))
        tp, pp, dp = sizes
        inside = self.engine.info.get("enable_dp_attention") is True  # its DP groups share the TP ranks
        return tp * pp * (1 if inside else dp)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`others` are all instances but the target."""

    target: Member
    others: tuple[Member, ...]
    routers: tuple[Router, ...]

    def of(self, role: str) -> tuple[Member, ...]:
        return tuple(member for member in self.others if member.role == role)

    def ready(self, role: str) -> tuple[Member, ...]:
        """Those that take requests now, from every router."""
        return tuple(
            member
            for member in self.of(role)
            if member.healthy
            and all(entry is not None and entry.healthy and entry.role == role for entry in member.listed)
        )


def read(order: Order) -> Fleet:
    """Never raises for what does not answer: the refusals say so."""
    routers = tuple(probe_router(url, LOOK, key=order.key) for url in order.routers)
    lists = [{worker.url: worker for worker in router.workers or ()} for router in routers]
    names = {endpoint.url.rstrip("/"): endpoint.name for endpoint in order.known}
    urls = list(dict.fromkeys([order.url, *names, *(url for listed in lists for url in listed)]))
    engines = probe_engines([Endpoint(names.get(url, url), "", url) for url in urls], LOOK, key=order.key)
    members = [
        Member(engine.endpoint.name, engine.endpoint.url, engine, tuple(listed.get(url) for listed in lists))
        for url, engine in zip(urls, engines, strict=True)
    ]
    return Fleet(members[0]._replace(name=order.name), tuple(members[1:]), routers)
