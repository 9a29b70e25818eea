"""From a described deployment to its plan: rules first, then places, then what passes between the sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.assembly import lay_out
from pdctl.layout.assumptions import assumed
from pdctl.layout.feasibility import check
from pdctl.layout.instance import Plan
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from pdctl.layout.assembly import Side
    from pdctl.layout.deployment import Case, Deployment
    from pdctl.layout.instance import Caution
    from pdctl.layout.shape import Shape


def solve(deployment: Deployment) -> Plan:
    """A plan with everything that holds of the deployment; without instances when a shape breaks a rule."""
    plan = Plan(
        name=deployment.name,
        engine=deployment.engine,
        version=deployment.release.asked,
        target=deployment.target,
        problems=deployment.problems,
        warnings=deployment.warnings,
        assumptions=assumed(deployment),
    )
    broken = tuple(problem for case in deployment.cases for problem in _shape_problems(deployment, case))
    if broken:
        return plan._replace(problems=plan.problems + broken)
    sides: list[Side] = []
    for case in deployment.cases:
        side, problems, warnings = _with_memory(deployment, case)
        sides.append(side)
        plan = plan._replace(problems=plan.problems + problems, warnings=plan.warnings + warnings)
    plan = plan._replace(instances=lay_out(sides, deployment.bases, deployment.target, deployment.sites))
    if len(sides) < 2:
        return plan
    from pdctl.layout.handover import hand_over  # late: the rank table of one instance needs nothing of it

    return hand_over(deployment, plan, sides)


def _shape_problems(deployment: Deployment, case: Case) -> list[Problem]:
    side, version, redundant = case.side, deployment.release.known, case.placement.redundant_experts
    found = check(side.shape, version, deployment.model, redundant, deployment.engine)
    if not found:
        return []
    from pdctl.layout.neighbours import nearest  # late: only a shape that does not work has use for it

    def works(shape: Shape) -> bool:
        return not check(shape, version, deployment.model, redundant)

    ways = tuple(case.words.shape(shape) for shape in nearest(side.shape, works))
    lead = f"{side.role}: " if len(deployment.cases) > 1 else ""
    return [Problem(problem.code, lead + problem.message, ways) for problem in found]


def _with_memory(deployment: Deployment, case: Case) -> tuple[Side, tuple[Problem, ...], tuple[Caution, ...]]:
    side, model = case.side, deployment.model
    if model is None:
        return side, (), ()
    from pdctl.layout.capacity import Question, judge  # late: only a known model has memory figures
    from pdctl.layout.traffic import demand

    wanted = demand(side, deployment.workload)
    question = Question(side.role, model, side.shape, case.placement, case.budget, wanted, deployment.release.known)
    memory, problems, warnings = judge(question, case.words)
    return side._replace(memory=memory), problems, warnings
