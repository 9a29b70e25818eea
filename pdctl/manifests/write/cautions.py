"""What can be rendered and may still not work in a cluster, in sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.layout.instance_plan import Caution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.write.settings import Settings
    from pdctl.topology.model import Topology

RELEASE = re.compile(r":v?(\d+\.\d+\.\d+)")
NO_RDMA = ("mooncake_tcp", "fake", "shm")


def cautions(topology: Topology, plan: Plan, settings: Settings) -> Iterator[Caution]:
    path = topology.model.path
    if path.startswith("/") and not any(f"{path}/".startswith(f"{each.mount}/") for each in settings.volumes):
        fix = f"--set targets.kubernetes.volumes.model.mount={path}, and its claim or host-path"
        yield Caution(
            "model-not-mounted", f"model.path {path} is looked for in the pods, where nothing is mounted: {fix}"
        )
    said = RELEASE.search(settings.image)
    if topology.engine.kind == "sglang" and said and topology.engine.version not in (None, said[1]):
        message = f"the image is of {said[1]}, the commands are for engine.version {topology.engine.version}"
        yield Caution("image-release", message)
    backend = topology.transfer.backend
    if topology.engine.kind == "sglang" and backend not in NO_RDMA and not (settings.rdma or settings.host_network):
        message = f"pods see no RDMA device: {backend or 'mooncake'} will find none, or move KV over TCP"
        yield Caution("no-rdma", f"{message}; --set targets.kubernetes.rdma-resource.rdma/ib=1")
    if settings.discovery == "urls" and topology.engine.kind == "sglang":
        what = "decodes keep the rank addresses of a prefill that is replaced behind its name (pdctl explain PD211)"
        yield Caution("stale-rank-addresses", f"{what}: restart them with it, or --set router.kind=sglang-router")
    if settings.host_network:
        yield from _shared_hosts(topology, plan)


def _shared_hosts(topology: Topology, plan: Plan) -> Iterator[Caution]:
    """All instances of a role use the same ports, and with them host ports."""
    for role in topology.roles:
        first = next((one for one in plan.instances if one.role == role.name), None)
        gpus = topology.pool(role.pool).gpus_per_host
        if first is not None and first.shape.gpus < gpus:
            left = gpus - first.shape.gpus
            message = (
                f"with host-network a host takes one {role.name} instance, whose ports it lends: {left} GPUs stay idle"
            )
            yield Caution("host-network", message)
