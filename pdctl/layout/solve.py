"""From a described deployment to its plan: rules first, then places, then what passes between the sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.dialect.sglang.rules import ALL_CP_RANKS_ENV
from pdctl.layout import commands
from pdctl.layout.assembly import Bases, Side, address, claims, lay_out
from pdctl.layout.assumptions import assumed
from pdctl.layout.feasibility import check
from pdctl.layout.instance import Caution, Plan, RouterPlan
from pdctl.layout.neighbours import nearest
from pdctl.layout.pairing import cautions, check_pair, links
from pdctl.layout.ports import Claim, collisions
from pdctl.layout.shape import PLAIN, Placement, Problem, Words
from pdctl.layout.workload import NO_WORKLOAD, Budget, Nic, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.dialect.versions import Release
    from pdctl.layout.instance import Instance
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Shape
    from pdctl.topology.model import Router

PORT_FIX = ("--set ports.http=…", "--set ports.bootstrap=…", "--set ports.dist-init=…", "--set router.port=…")


class Case(NamedTuple):
    """One role: what is laid out, and what is asked about it. `words` spell the changes proposed to the user."""

    side: Side
    words: Words
    budget: Budget
    placement: Placement = PLAIN
    nic: Nic | None = None


class Deployment(NamedTuple):
    """`model` None: not known, and `mla` what the user said of it (None: nothing). `env` is what both sides share."""

    name: str
    engine: str
    release: Release
    target: str
    cases: tuple[Case, ...]
    bases: Bases
    model: ModelShape | None = None
    mla: bool | None = None
    workload: Workload = NO_WORKLOAD
    env: Mapping[str, str] = {}
    router: Router | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Caution, ...] = ()


def solve(deployment: Deployment) -> Plan:
    """A plan with everything that holds of the deployment; without instances when a shape breaks a rule."""
    broken = tuple(problem for case in deployment.cases for problem in _shape_problems(deployment, case))
    if broken:
        return _plan(deployment, problems=broken)
    problems: list[Problem] = list(_pair_problems(deployment))
    pairs = len(deployment.cases) == 2 and not problems
    warnings = list(_pair_cautions(deployment)) if pairs else []
    sides: list[Side] = []
    for case in deployment.cases:
        side = case.side
        if deployment.model is not None:
            side, found, told = _with_memory(deployment, case)
            problems += found
            warnings += told
        sides.append(side)
    instances = lay_out(sides, deployment.bases, deployment.target)
    router = _router(deployment, instances) if deployment.router is not None else None
    problems += _port_problems(instances, router)
    plan = _plan(deployment, instances=instances, router=router, problems=tuple(problems), warnings=tuple(warnings))
    return _with_traffic(deployment, plan) if pairs else plan


def _plan(
    deployment: Deployment,
    *,
    problems: tuple[Problem, ...],
    instances: tuple[Instance, ...] = (),
    router: RouterPlan | None = None,
    warnings: tuple[Caution, ...] = (),
) -> Plan:
    return Plan(
        name=deployment.name,
        engine=deployment.engine,
        version=deployment.release.asked,
        target=deployment.target,
        instances=instances,
        router=router,
        problems=deployment.problems + problems,
        warnings=deployment.warnings + warnings,
        assumptions=assumed(deployment),
    )


def _shape_problems(deployment: Deployment, case: Case) -> list[Problem]:
    side, version, redundant = case.side, deployment.release.known, case.placement.redundant_experts

    def works(shape: Shape) -> bool:
        return not check(shape, version, deployment.model, redundant)

    found = check(side.shape, version, deployment.model, redundant, deployment.engine)
    ways = tuple(case.words.shape(shape) for shape in nearest(side.shape, works)) if found else ()
    lead = f"{side.role}: " if len(deployment.cases) > 1 else ""
    return [Problem(problem.code, lead + problem.message, ways) for problem in found]


def _pair_problems(deployment: Deployment) -> list[Problem]:
    """The decode side is moved to where the prefill side is; its page size is set to the prefill's."""
    if len(deployment.cases) < 2:
        return []
    (prefill, decode), version = deployment.cases, deployment.release.known
    pages = prefill.side.serving.page_size, decode.side.serving.page_size
    found = check_pair(prefill.side.shape, decode.side.shape, version, pages, deployment.engine)

    def works(shape: Shape) -> bool:
        return not check(shape, version, deployment.model, decode.placement.redundant_experts) and not check_pair(
            prefill.side.shape, shape, version
        )

    def ways(problem: Problem) -> tuple[str, ...]:
        if problem.code == "pair-page-size":
            return (decode.words.setting("page-size", str(pages[0])),)
        return tuple(decode.words.shape(shape) for shape in nearest(decode.side.shape, works))

    return [Problem(problem.code, problem.message, ways(problem)) for problem in found]


def _pair_cautions(deployment: Deployment) -> list[Caution]:
    prefill, decode = (case.side for case in deployment.cases)
    mla = deployment.model.mla if deployment.model is not None else deployment.mla
    pages = prefill.serving.page_size, decode.serving.page_size
    return list(cautions(prefill.shape, decode.shape, deployment.release.known, mla, deployment.env, pages))


def _with_memory(deployment: Deployment, case: Case) -> tuple[Side, tuple[Problem, ...], tuple[Caution, ...]]:
    from pdctl.layout.capacity import Question, judge  # late: the flag-only plan needs no memory arithmetic
    from pdctl.layout.traffic import demand

    side, model = case.side, deployment.model
    assert model is not None
    wanted = demand(side, deployment.workload)
    question = Question(side.role, model, side.shape, case.placement, case.budget, wanted, deployment.release.known)
    memory, problems, warnings = judge(question, case.words)
    return side._replace(memory=memory), problems, warnings


def _router(deployment: Deployment, instances: tuple[Instance, ...]) -> RouterPlan:
    """On the first prefill's host: the router needs no GPU, and a host of its own is the target's business."""
    spec = deployment.router
    assert spec is not None
    prefills = [(one.url, one.bootstrap_port) for one in instances if one.role == "prefill"]
    decodes = [one.url for one in instances if one.role == "decode"]
    host = next(one.host_name for one in instances if one.role == "prefill")
    env = tuple(deployment.env.items()) if spec.kind == "embedded" else ()
    command = commands.router(spec, prefills, decodes, env)
    return RouterPlan("router", spec.host, host, address(host), spec.port, command)


def _port_problems(instances: tuple[Instance, ...], router: RouterPlan | None) -> tuple[Problem, ...]:
    found = claims(instances)
    if router is not None:
        found.append(Claim(router.host_name, router.port, router.name, "http"))
    return collisions(found, PORT_FIX if router is not None else ())


def _with_traffic(deployment: Deployment, plan: Plan) -> Plan:
    from dataclasses import replace

    version, model = deployment.release.known, deployment.model
    mla = model.mla if model is not None else bool(deployment.mla)
    all_cp = deployment.env.get(ALL_CP_RANKS_ENV, "").lower() in ("1", "true", "yes")
    plan = replace(plan, links=links(plan.instances, version, mla, all_cp))
    if model is None:
        return plan
    from pdctl.layout.traffic import shares, transfer  # late, as above

    return replace(
        plan,
        transfer=transfer(deployment, plan.instances),
        ratio=shares(deployment, plan.instances),
    )
