"""Where two processes of one host would bind the same port."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sglang.ports import LAST_PORT
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.layout.instance import Instance


class Claim(NamedTuple):
    """A port somebody binds: `owner` is an instance's name or `router`."""

    host: str
    port: int
    owner: str
    purpose: str


def claims(instances: Iterable[Instance]) -> list[Claim]:
    """Every port of every instance, on the host it is bound on."""
    return [
        Claim(one.host_names[port.node], port.port, one.name, port.purpose) for one in instances for port in one.ports
    ]


def collisions(claims: Iterable[Claim]) -> tuple[Problem, ...]:
    """One problem per doubly claimed port, and per number that is no port; `nearest` stays empty (see `moves`)."""
    taken: dict[tuple[str, int], Claim] = {}
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
