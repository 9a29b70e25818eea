"""From a plan to Kubernetes manifests: what `pdctl plan --target kubernetes` prints, as objects a cluster can run.

The commands are the plan's own. An instance is a group of pods, one to a node of the instance, made from one template;
what differs from node to node (the rank, the leader's address) comes from variables that the operator sets. See
docs/kubernetes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.errors import InfeasibleError, UsageError
from pdctl.manifests.write import flavours, router, services
from pdctl.manifests.write.groups import group

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.write.objects import Object
    from pdctl.manifests.write.settings import Settings

__all__ = ["manifests"]


def manifests(plan: Plan, settings: Settings) -> tuple[Object, ...]:
    """Every object, in the order in which they are applied: what is referred to comes first.

    `plan` is one for target kubernetes. Raises InfeasibleError for a plan with problems, UsageError for settings that
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
        *services.leaders(groups, settings, flavour),
        *router.objects(plan, plan.router, groups, settings, flavour),
        *flavour.objects(groups, settings),
    )
