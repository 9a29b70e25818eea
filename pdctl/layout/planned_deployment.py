"""What is to be planned: one or two roles, and everything said about their hardware, model and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.layout.shape import PLAIN, Placement, ShapeWords
from pdctl.layout.workload import NO_WORKLOAD, UNMEASURED, Budget, Measured, Nic, TrafficGoal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.versions import Release
    from pdctl.layout.assembly import Bases, RoleSide
    from pdctl.layout.hosts import Site
    from pdctl.layout.instance_plan import Caution
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Problem
    from pdctl.topology.model import Router


class PlannedRole(NamedTuple):
    """One role: what is laid out, and what is asked about it. `words` spell the changes proposed to the user."""

    side: RoleSide
    words: ShapeWords
    budget: Budget
    placement: Placement = PLAIN
    nic: Nic | None = None


class PlannedDeployment(NamedTuple):
    """`model` None: not known, and `mla` what the user said of it (None: nothing). `env` is what both sides share."""

    name: str
    engine: str  # embedded | sglang
    release: Release
    target: str  # local | pools
    cases: tuple[PlannedRole, ...]  # prefill, or prefill and decode
    bases: Bases
    model: ModelShape | None = None
    mla: bool | None = None
    workload: TrafficGoal = NO_WORKLOAD
    measured: Measured = UNMEASURED
    env: Mapping[str, str] = {}
    router: Router | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Caution, ...] = ()
    sites: Mapping[str, Site] = {}  # the hosts a target has given, by the plan's own names for them
