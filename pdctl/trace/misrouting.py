"""Bootstrap ports a router sends that lead elsewhere: from start lines alone, before any request went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill
from pdctl.trace.crashes import shown
from pdctl.trace.diagnosis import Finding
from pdctl.trace.routing import router_command
from pdctl.trace.upstreams import sent_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.identify import Target
    from pdctl.trace.deployment import Deployment, Instance
    from pdctl.trace.upstreams import Router


def misrouted(deployment: Deployment) -> tuple[Finding, ...]:
    """Only where the prefill's own log tells which port it listens on, and every decode's what it dials instead."""
    return tuple({one.code: one for router in deployment.routers for one in _of(router, deployment)}.values())


def _of(router: Router, deployment: Deployment) -> Iterator[Finding]:
    for target in router.prefills:
        owner = deployment.at_url(target.url)
        if owner is None or owner.bootstrap_port is None:
            continue
        dialled = _dialled(target, deployment)
        if dialled is None or dialled == owner.bootstrap_port:
            continue
        yield _finding(router, target, owner, dialled, deployment)


def _dialled(target: Target, deployment: Deployment) -> int | None:
    """The port every decode dials for this prefill; None where they differ or do not say."""
    if target.port is not None:
        return target.port
    defaults = {one.default_port for one in deployment.decodes}
    return defaults.pop() if len(defaults) == 1 else None


def _finding(router: Router, target: Target, owner: Instance, dialled: int, deployment: Deployment) -> Finding:
    address = sent_address(target, dialled)
    other = deployment.bootstrap_owner(address) if address is not None else None
    code = (
        "PD201"
        if target.port is None
        else "PD203"
        if other is not None and _swapped(router, other, owner, deployment)
        else "PD202"
    )
    known = entry(code)
    fills = {
        "instance": owner.name, "prefill": owner.name, "url": target.url, "port": str(owner.bootstrap_port),
        "observed": f"{dialled} ({other.name})" if other else str(dialled), "expected": str(owner.bootstrap_port),
        "other": other.name if other else "nobody", "contacted": other.name if other else "nobody",
    }  # fmt: skip
    sent = "no bootstrap port" if target.port is None else f"bootstrap port {target.port}"
    where = f"{other.name} listens there" if other else "no prefill of these logs listens there"
    listens = f"{owner.name} listens on {owner.bootstrap_port}"
    why = f"{router.name} sends {sent} for {target.url}; the decode dials {dialled}, {listens}: {where}"
    evidence = (shown(router.start, "the router's list"),) if router.start is not None else ()
    at = router.start.t if router.start is not None else None
    return Finding(
        code, known.slug, fill(known.headline, fills), why, owner.name, (), at, at, evidence, router_command(deployment)
    )


def _swapped(router: Router, other: Instance, owner: Instance, deployment: Deployment) -> bool:
    """The router sends this one's port for the other one, too."""
    return any(deployment.at_url(each.url) is other and each.port == owner.bootstrap_port for each in router.prefills)
