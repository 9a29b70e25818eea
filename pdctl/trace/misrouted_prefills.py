"""Prefills whose requests lead decodes to another bootstrap port, by the routers' lists and the logs' start lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill
from pdctl.trace.deployment_report import DeploymentFinding
from pdctl.trace.observed_deployment import (
    on_hosts_of_their_own,
    router_command,
    sends_its_list,
    sent_address,
)
from pdctl.trace.proven_deaths import as_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.identify import ListedPrefill
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance, RouterWorkers


def misrouted(deployment: ObservedDeployment) -> tuple[DeploymentFinding, ...]:
    """Prefills whose requests lead decodes to another bootstrap port, by the router's list; one finding per code.

    Which prefill that is, is known where its own log names the port it listens on and the port every decode dials is
    known. Without any of that, nulls for several prefills of one host still lead to one of them at most.
    """
    found: dict[str, DeploymentFinding] = {}
    for router in deployment.routers:
        if sends_its_list(router, deployment):
            for one in (*_misrouted_by(router, deployment), *_nulls_on_one_host(router, deployment)):
                found.setdefault(one.code, one)
    return tuple(found.values())


def _misrouted_by(router: RouterWorkers, deployment: ObservedDeployment) -> Iterator[DeploymentFinding]:
    for target in router.prefills:
        owner = deployment.at_url(target.url)
        if owner is None or owner.bootstrap_port is None:
            continue
        dialled = _dialled(target, deployment)
        if dialled is None or dialled == owner.bootstrap_port:
            continue
        yield _misrouting(router, target, owner, dialled, deployment)


def _nulls_on_one_host(router: RouterWorkers, deployment: ObservedDeployment) -> Iterator[DeploymentFinding]:
    nulls = list(dict.fromkeys(one for one in router.prefills if one.port is None))
    if router.start is None or on_hosts_of_their_own(nulls) is not False:
        return
    known = entry("PD201")
    urls = " and ".join(one.url for one in nulls)
    fills = {"instance": urls, "observed": "its own default port"}
    why = (
        f"{router.name} lists {urls} without bootstrap ports; a decode puts in its own, and prefills of one host have "
        "different ones: requests to all but one of them hang. Which one is served, the decode's own port decides"
    )
    yield DeploymentFinding(
        "PD201", known.slug, fill(known.headline, fills), why, router.name, (), router.start.t, router.start.t,
        (as_evidence(router.start, "the router's list"),), router_command(deployment),
    )  # fmt: skip


def _dialled(target: ListedPrefill, deployment: ObservedDeployment) -> int | None:
    """The port every decode dials for this prefill; None if they differ or are not logged."""
    if target.port is not None:
        return target.port
    defaults = {one.default_port for one in deployment.decodes}
    return defaults.pop() if len(defaults) == 1 else None


def _misrouting(
    router: RouterWorkers, target: ListedPrefill, owner: ObservedInstance, dialled: int, deployment: ObservedDeployment
) -> DeploymentFinding:
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
    evidence = (as_evidence(router.start, "the router's list"),) if router.start is not None else ()
    at = router.start.t if router.start is not None else None
    return DeploymentFinding(
        code, known.slug, fill(known.headline, fills), why, owner.name, (), at, at, evidence, router_command(deployment)
    )


def _swapped(
    router: RouterWorkers, other: ObservedInstance, owner: ObservedInstance, deployment: ObservedDeployment
) -> bool:
    """Whether the router also sends this prefill's port for the other one."""
    return any(deployment.at_url(each.url) is other and each.port == owner.bootstrap_port for each in router.prefills)
