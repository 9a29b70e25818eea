"""One role as groups of pods: how many, of what size, and the pod they are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.manifests.write.command import HOST_IP, address, environment, template_words
from pdctl.manifests.write.objects import BOOTSTRAP_PORT, Object, labels
from pdctl.manifests.write.pods import Ports, engine_spec

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.manifests.write.flavours import Flavour
    from pdctl.manifests.write.settings import Settings


class Group(NamedTuple):
    """`name` is the role's, of one deployment. `worker` None: every pod is made like the leader."""

    role: str
    name: str
    instances: tuple[InstancePlan, ...]
    ports: Ports
    leader: Object
    worker: Object | None

    @property
    def replicas(self) -> int:
        return len(self.instances)

    @property
    def size(self) -> int:
        """Pods of one instance."""
        return self.instances[0].nnodes


def group(role: str, plan: Plan, settings: Settings, flavour: Flavour) -> Group:
    instances = tuple(one for one in plan.instances if one.role == role)
    first = instances[0]
    ports = Ports(first.http_port, first.bootstrap_port)
    leader = _template(role, instances, ports, settings, flavour, leads=True)
    worker = _template(role, instances, ports, settings, flavour, leads=False)
    alike = first.nnodes == 1 or worker == leader
    return Group(role, f"{plan.name}-{role}", instances, ports, leader, None if alike else worker)


def _template(
    role: str, instances: tuple[InstancePlan, ...], ports: Ports, settings: Settings, flavour: Flavour, leads: bool
) -> Object:
    first = instances[0]
    words = template_words(instances, flavour.variables)
    given = dict(first.serving.env)
    env = [*([] if HOST_IP in given else address()), *environment(given, settings.secrets)]
    gpus = 0 if any(rank.gpu is None for rank in first.ranks) else sum(rank.node == 0 for rank in first.ranks)
    metadata: Object = {"labels": labels(settings.name, role)}
    if ports.bootstrap is not None:
        metadata["annotations"] = {BOOTSTRAP_PORT: str(ports.bootstrap)}
    return {"metadata": metadata, "spec": engine_spec(role, words, env, gpus, ports, settings, leads)}
