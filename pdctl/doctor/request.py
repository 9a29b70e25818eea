"""What doctor is asked to look at, and where its addresses come from: a plan, a router's list, the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor.bootstrap_ports import address, plain, workers
from pdctl.doctor.facts import Depth
from pdctl.engines import numerals
from pdctl.errors import UsageError
from pdctl.fleet.address import LAST_PORT, Unanswered, join, parse
from pdctl.fleet.observations import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.fleet.observations import Ended, Router
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.manifest import Manifest
    from pdctl.topology.model import Topology


class Progress(NamedTuple):
    """`what` is being looked at, for people; `done` of `total` are there."""

    what: str
    done: int
    total: int


def _silent(_: Progress) -> None:
    pass


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


def _no_pids() -> Mapping[int, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """Times in seconds: `deadline` for everything but canaries, `canary_deadline` for one canary request.

    endpoints: () with a router given: its workers are looked at, under the names prefill-0, decode-0, … in the order of
    their addresses. router_metrics: where its Prometheus text is, when neither on its own port nor on 29000.
    key: bearer token for servers that ask for one. model: the name canaries ask for ("": the engine's own).
    logs: files, directories or globs; names: path → instance, for a run; since: epoch seconds, what is older in them is
    another run's. environ: of this host, for the host checks. own: pid → instance of the run's processes on this host.
    ended: those that are over, as recorded.
    extras: also an over-length prompt, a cancelled stream, n = 2 and a burst, after the pairs.
    """

    depth: Depth = Depth.LIVE
    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None
    endpoints: tuple[Endpoint, ...] = ()
    router: str = ""
    router_metrics: str = ""
    key: str = ""
    model: str = ""
    logs: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=_nothing)
    since: float | None = None
    environ: Mapping[str, str] = field(default_factory=_nothing)
    own: Mapping[int, str] = field(default_factory=_no_pids)
    ended: tuple[Ended, ...] = ()
    deadline: float = 8.0
    canary_deadline: float = 30.0
    extras: bool = True
    host: bool = True
    progress: Callable[[Progress], None] = _silent


def planned(plan: Plan) -> tuple[Endpoint, ...]:
    """The instances a plan would start, where it would start them."""
    return tuple(
        Endpoint(
            name=one.name,
            role=one.role,
            url=one.url,
            bootstrap_port=one.bootstrap_port,
            ranks=one.shape.gpus if one.role == "prefill" else None,
        )
        for one in plan.instances
    )


def planned_router(plan: Plan) -> str:
    """Its URL, "" where the plan has none."""
    router = plan.router
    if router is None:
        return ""
    return join(router.address, router.port)


def planned_metrics(plan: Plan) -> str:
    """Where the plan's router publishes metrics, "" where it does so on its own port."""
    router = plan.router
    return "" if router is None or router.metrics is None else join(router.address, router.metrics)


def listed(router: Router) -> tuple[Endpoint, ...]:
    """The router's own workers, named by role and counted in the order of their addresses: the same each time."""
    found: list[Endpoint] = []
    for role in ("prefill", "decode"):
        urls = sorted({plain(one.url) for one in workers(router) if one.role == role}, key=address)
        found += [Endpoint(f"{role}-{number}", role, url) for number, url in enumerate(urls)]
    return tuple(found)


def given(prefills: tuple[str, ...], decodes: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """From `--prefill URL[,PORT]` and `--decode URL`; UsageError names what cannot be read."""
    found = [_prefill(f"prefill-{number}", text) for number, text in enumerate(prefills)]
    found += [Endpoint(f"decode-{number}", "decode", url(text)) for number, text in enumerate(decodes)]
    return tuple(found)


def _prefill(name: str, text: str) -> Endpoint:
    where, comma, port = text.rpartition(",")
    if not comma:
        return Endpoint(name, "prefill", url(text))
    number = numerals.port(port.strip())
    if number is None or not 0 < number <= LAST_PORT:
        raise UsageError(f"`{port}` in --prefill {text} is no bootstrap port", "--prefill http://HOST:30000,8998")
    return Endpoint(name, "prefill", url(where), number)


def url(text: str) -> str:
    """With http:// added where it is left out; UsageError for what cannot be an address."""
    text = text.strip()
    whole = text if "://" in text else f"http://{text}"
    try:
        parse(whole)
    except Unanswered:
        raise UsageError(f"`{text}` is no address of a server", "write it as http://HOST:PORT") from None
    return plain(whole)
