"""Where two processes of one host would bind the same port, and which single change of the settings ends that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sglang.ports import LAST_PORT
from pdctl.layout.assembly import Bases, lay_out
from pdctl.layout.hosts import NOWHERE
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.layout.assembly import RoleSide
    from pdctl.layout.hosts import Site
    from pdctl.layout.instance_plan import InstancePlan, RouterPlan

SHOWN = 3


class PortClaim(NamedTuple):
    """A port somebody binds: `owner` is an instance's name or `router`."""

    host: str
    port: int
    owner: str
    purpose: str


def claims(instances: Iterable[InstancePlan]) -> list[PortClaim]:
    """Every port of every instance, on the host it is bound on."""
    return [
        PortClaim(one.host_names[port.node], port.port, one.name, port.purpose)
        for one in instances
        for port in one.ports
    ]


def collisions(claims: Iterable[PortClaim]) -> tuple[Problem, ...]:
    """One problem per doubly claimed port, and per number that is no port; `nearest` stays empty (see `moves`)."""
    taken: dict[tuple[str, int], PortClaim] = {}
    problems: list[Problem] = []
    for claim in claims:
        name = f"{claim.owner}'s {claim.purpose} port {claim.port}"
        if not 0 < claim.port <= LAST_PORT:
            problems.append(Problem("port-range", f"{name} on {claim.host} is outside 1 to {LAST_PORT}"))
            continue
        other = taken.setdefault((claim.host, claim.port), claim)
        if other is not claim:
            problems.append(
                Problem("port-collision", f"{name} on {claim.host} is also {other.owner}'s {other.purpose} port")
            )
    return tuple(problems)


def moves(
    sides: Sequence[RoleSide], bases: Bases, target: str, router: RouterPlan, sites: Mapping[str, Site] = NOWHERE
) -> tuple[str, ...]:
    """Up to three, as `--set` words; none where two changes would be needed."""
    found: list[str] = []
    for words, moved, port in _candidates(bases, router.port):
        wanted = claims(lay_out(sides, moved, target, sites))
        own = router._replace(port=port).ports
        wanted += [PortClaim(router.host_name, number, router.name, purpose) for number, purpose in own]
        if not collisions(wanted):
            found.append(words)
    return tuple(found[:SHOWN])


def _candidates(bases: Bases, port: int) -> Iterator[tuple[str, Bases, int]]:
    """The block's length first: that is what a short stride needs; then each base somewhere else."""
    if bases.stride < Bases().stride:
        yield f"--set ports.stride={Bases().stride}", bases._replace(stride=Bases().stride), port
    for step in (100, 1000, -1000, 10000, -10000):
        yield f"--set router.port={port + step}", bases, port + step
        yield f"--set ports.http={bases.http + step}", bases._replace(http=bases.http + step), port
        yield f"--set ports.bootstrap={bases.bootstrap + step}", bases._replace(bootstrap=bases.bootstrap + step), port
        yield f"--set ports.dist-init={bases.dist + step}", bases._replace(dist=bases.dist + step), port
