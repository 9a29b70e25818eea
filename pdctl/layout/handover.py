"""What prefill and decode ask of each other: rules between them, the router in front, KV links, the bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sglang.agreement import common_page_size
from pdctl.engines.sglang.rules import ALL_CP_RANKS_ENV
from pdctl.layout import commands
from pdctl.layout.collisions import Claim, claims, collisions
from pdctl.layout.feasibility import check
from pdctl.layout.instance import RouterPlan
from pdctl.layout.neighbours import nearest
from pdctl.layout.pairing import cautions, check_pair, links
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.layout.assembly import Side
    from pdctl.layout.deployment import Deployment
    from pdctl.layout.instance import Caution, Instance, Plan
    from pdctl.layout.shape import Shape
    from pdctl.topology.model import Router

EVERYWHERE = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # bind addresses that are no address to call


def hand_over(deployment: Deployment, plan: Plan, sides: Sequence[Side]) -> Plan:
    """The plan of two sides, completed; without links when the two cannot work together."""
    router = _router(deployment, deployment.router, plan.instances) if deployment.router is not None else None
    at_odds = _pair_problems(deployment)
    met = _port_problems(deployment, plan.instances, sides, router)
    plan = plan._replace(router=router, problems=(*plan.problems, *at_odds, *met))
    if at_odds:
        return plan
    return _with_traffic(deployment, plan._replace(warnings=plan.warnings + _cautions(deployment)))


def _pair_problems(deployment: Deployment) -> list[Problem]:
    """What to change is the decode side, to a shape that fits; the page size is the one doctor names too."""
    (prefill, decode), version = deployment.cases, deployment.release.known
    pages = prefill.side.serving.page_size, decode.side.serving.page_size
    found = check_pair(prefill.side.shape, decode.side.shape, version, pages, deployment.engine)

    def works(shape: Shape) -> bool:
        alone = check(shape, version, deployment.model, decode.placement.redundant_experts)
        return not alone and not check_pair(prefill.side.shape, shape, version)

    def ways(problem: Problem) -> tuple[str, ...]:
        if problem.code == "pair-page-size":
            agreed = common_page_size(*pages)
            sides = ((prefill, pages[0]), (decode, pages[1]))
            return (" ".join(side.words.setting("page-size", str(agreed)) for side, page in sides if page != agreed),)
        return tuple(decode.words.shape(shape) for shape in nearest(decode.side.shape, works))

    return [Problem(problem.code, problem.message, ways(problem)) for problem in found]


def _cautions(deployment: Deployment) -> tuple[Caution, ...]:
    prefill, decode = (case.side for case in deployment.cases)
    mla = deployment.model.mla if deployment.model is not None else deployment.mla
    pages = prefill.serving.page_size, decode.serving.page_size
    embedded = deployment.engine == "embedded"
    return tuple(cautions(prefill.shape, decode.shape, deployment.release.known, mla, deployment.env, pages, embedded))


def _router(deployment: Deployment, spec: Router, instances: tuple[Instance, ...]) -> RouterPlan:
    """On the first prefill's host, as it needs no GPU; in Kubernetes in a pod of its own."""
    prefills = [(one.url, one.bootstrap_port) for one in instances if one.role == "prefill"]
    decodes = [one.url for one in instances if one.role == "decode"]
    first = next(one for one in instances if one.role == "prefill")
    env = tuple(deployment.env.items()) if spec.kind == "pdctl" else ()
    host, reached = first.host_name, first.address if spec.host in EVERYWHERE else spec.host
    if deployment.target == "kubernetes":
        host = reached = f"{deployment.name}-router"
    command = commands.router(spec, prefills, decodes, env)
    metrics = commands.router_metrics(spec)
    return RouterPlan("router", spec.host, host, reached, spec.port, command, metrics)


def _port_problems(
    deployment: Deployment, instances: tuple[Instance, ...], sides: Sequence[Side], router: RouterPlan | None
) -> tuple[Problem, ...]:
    found = claims(instances)
    if router is None:
        return collisions(found)
    found += [Claim(router.host_name, port, router.name, purpose) for port, purpose in router.ports]
    problems = collisions(found)
    if not problems:
        return ()
    from pdctl.layout.moves import moves  # late: only a collision has use for it

    ways = moves(sides, deployment.bases, deployment.target, router, deployment.sites)
    return tuple(problem._replace(nearest=ways) for problem in problems)


def _with_traffic(deployment: Deployment, plan: Plan) -> Plan:
    version, model = deployment.release.known, deployment.model
    mla = model.mla if model is not None else bool(deployment.mla)
    all_cp = deployment.env.get(ALL_CP_RANKS_ENV, "").lower() in ("1", "true", "yes")
    kv_heads = model.kv_heads if model is not None else None
    plan = plan._replace(links=links(plan.instances, version, mla, kv_heads, all_cp))
    if model is None:
        return plan
    from pdctl.layout.traffic import shares, short, transfer  # late: only a known model has a bill

    bill, ratio = transfer(deployment, plan.instances), shares(deployment, plan.instances)
    told = tuple(short(bill, ratio, plan.instances))
    return plan._replace(transfer=bill, ratio=ratio, warnings=plan.warnings + told)
