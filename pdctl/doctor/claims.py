"""Which (host, port) may hold which prefill's bootstrap server, and who says so; each place is asked once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor import reading
from pdctl.doctor.ports import DECODE_DEFAULT, agreement, annotated
from pdctl.fleet.bootstraps import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.doctor.facts import Facts
    from pdctl.doctor.ports import Claims
    from pdctl.fleet.facts import Bootstrap


class Shared(NamedTuple):
    """One place to ask, and every prefill it is claimed for with who claims it."""

    where: Claim
    who: dict[str, tuple[str, ...]]


def bootstrap_claims(facts: Facts) -> tuple[Shared, ...]:
    ranks = {one.endpoint.name: one.endpoint.ranks or reading.ranks(one) for one in facts.engines}
    found: dict[tuple[str, int], Shared] = {}
    for prefill, host, port, place in _claimed(facts):
        shared = found.setdefault((host, port), Shared(Claim(prefill, host, port, (), ranks.get(prefill)), {}))
        shared.who[prefill] = (*shared.who.get(prefill, ()), place)
    return tuple(found.values())


def _claimed(facts: Facts) -> Iterator[tuple[str, str, int, str]]:
    """Prefill, host, port, who says so. A null is a claim of every decode's own port."""
    annotations = annotated(facts)
    defaults = {
        port
        for engine in facts.engines
        if engine.endpoint.role == "decode" and (port := engine.number("disaggregation_bootstrap_port")) is not None
    }
    for claim in agreement(facts, True).claims:
        for place, port in _named(claim, annotations.get(claim.prefill)):
            if port is not None and claim.host:
                yield claim.prefill, claim.host, port, place
        if claim.sends_null and claim.host:
            for port in sorted(defaults):
                yield claim.prefill, claim.host, port, DECODE_DEFAULT


def _named(claim: Claims, annotation: int | None) -> Iterator[tuple[str, int | None]]:
    yield "server_info", claim.server_info
    yield "flag", claim.flag
    yield "router", claim.router
    yield "annotation", annotation


def fan_out(claims: Sequence[Shared], seen: Sequence[Bootstrap]) -> tuple[Bootstrap, ...]:
    """What was seen at each place, for every prefill it was claimed for."""
    return tuple(
        replace(one, prefill=prefill, claimed_by=places)
        for claim, one in zip(claims, seen, strict=True)
        for prefill, places in claim.who.items()
    )
