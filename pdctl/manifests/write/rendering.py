"""From a topology to checked manifests, which `pdctl render` prints and `pdctl launch -t kubernetes` applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.layout.planner import plan_topology
from pdctl.manifests import validate
from pdctl.manifests.write import manifests
from pdctl.manifests.write.cautions import cautions
from pdctl.manifests.write.settings import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.layout.instance_plan import Caution, Plan
    from pdctl.manifests.write.objects import Object
    from pdctl.manifests.write.settings import Settings
    from pdctl.topology.model import Topology


class Rendering(NamedTuple):
    plan: Plan
    settings: Settings
    objects: tuple[Object, ...]
    cautions: tuple[Caution, ...]


def render(topology: Topology, flavour: str | None = None, versions: Sequence[str] = validate.VERSIONS) -> Rendering:
    """Checked against each of the Kubernetes `versions`. Raises UsageError, InfeasibleError."""
    chosen = settings(topology, flavour)
    plan = plan_topology(topology, "kubernetes")
    objects = manifests(plan, chosen)
    validate.check(objects, versions)
    return Rendering(plan, chosen, objects, (*plan.warnings, *cautions(topology, plan, chosen)))
