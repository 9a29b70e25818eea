"""Turn a topology into checked manifests, which `pdctl render` prints and `pdctl launch -t kubernetes` applies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.errors import InfeasibleError, UsageError
from pdctl.layout.planner import plan_topology
from pdctl.layout.shape import Caution
from pdctl.manifests import kubernetes_validation
from pdctl.manifests.write import flavours, router_objects
from pdctl.manifests.write.flavours import group
from pdctl.manifests.write.kubernetes_settings import settings
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.write.kubernetes_settings import KubernetesSettings
    from pdctl.manifests.write.objects import Object
    from pdctl.topology.model import Topology

RELEASE = re.compile(r":v?(\d+\.\d+\.\d+)")
NO_RDMA = ("mooncake_tcp", "fake", "shm")


def manifests(plan: Plan, settings: KubernetesSettings) -> tuple[Object, ...]:
    """Every object in the order of application: objects that others refer to come first.

    `plan` must be for target kubernetes. Raise InfeasibleError for a plan with problems, UsageError for settings that
    contradict it.
    """
    if plan.problems:
        worst = plan.problems[0]
        raise InfeasibleError(worst.message, worst.nearest[0] if worst.nearest else "")
    if plan.target != "kubernetes" or plan.router is None:
        raise UsageError(f"a plan for {plan.target} has no pods", "plan it with --target kubernetes")
    flavour = flavours.FLAVOURS[settings.flavour]
    groups = tuple(group(role, plan, settings, flavour) for role in ("prefill", "decode"))
    return (
        *router_objects.leaders(groups, settings, flavour),
        *router_objects.objects(plan, plan.router, groups, settings, flavour),
        *flavour.objects(groups, settings),
    )


def cautions(topology: Topology, plan: Plan, settings: KubernetesSettings) -> Iterator[Caution]:
    path = topology.model.path
    if path.startswith("/") and not any(f"{path}/".startswith(f"{each.mount}/") for each in settings.volumes):
        fix = f"--set targets.kubernetes.volumes.model.mount={path}, and its claim or host-path"
        yield Caution(
            "model-not-mounted", f"model.path {path} is looked for in the pods, where nothing is mounted: {fix}"
        )
    said = RELEASE.search(settings.image)
    if topology.engine.kind != EMBEDDED and said and topology.engine.version not in (None, said[1]):
        message = f"the image is of {said[1]}, the commands are for engine.version {topology.engine.version}"
        yield Caution("image-release", message)
    backend = topology.transfer.backend
    if topology.engine.kind != EMBEDDED and backend not in NO_RDMA and not (settings.rdma or settings.host_network):
        message = f"pods see no RDMA device: {backend or 'mooncake'} will find none, or move KV over TCP"
        yield Caution("no-rdma", f"{message}; --set targets.kubernetes.rdma-resource.rdma/ib=1")
    if settings.discovery == "urls" and topology.engine.kind != EMBEDDED:
        what = "decodes keep the rank addresses of a prefill that is replaced behind its name (pdctl explain PD211)"
        yield Caution("stale-rank-addresses", f"{what}: restart them with it, or --set router.kind=sglang-router")
    if settings.host_network:
        yield from _shared_hosts(topology, plan)


def _shared_hosts(topology: Topology, plan: Plan) -> Iterator[Caution]:
    """Warn of idle GPUs: all instances of a role use the same ports, so with host-network a host takes only one."""
    for role in topology.roles:
        first = next((one for one in plan.instances if one.role == role.name), None)
        gpus = topology.pool(role.pool).gpus_per_host
        if first is not None and first.shape.gpus < gpus:
            left = gpus - first.shape.gpus
            message = (
                f"with host-network a host takes one {role.name} instance, whose ports it lends: {left} GPUs stay idle"
            )
            yield Caution("host-network", message)


class Rendering(NamedTuple):
    plan: Plan
    settings: KubernetesSettings
    objects: tuple[Object, ...]
    cautions: tuple[Caution, ...]


def render(
    topology: Topology, flavour: str | None = None, versions: Sequence[str] = kubernetes_validation.VERSIONS
) -> Rendering:
    """Render a topology and check its objects against each of the Kubernetes `versions`.

    Raise UsageError or InfeasibleError.
    """
    chosen = settings(topology, flavour)
    plan = plan_topology(topology, "kubernetes")
    objects = manifests(plan, chosen)
    kubernetes_validation.check_objects(objects, versions)
    return Rendering(plan, chosen, objects, (*plan.warnings, *cautions(topology, plan, chosen)))
