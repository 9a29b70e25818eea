"""The entry points of the layout: plan a topology, or a bare shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.versions import resolve
from pdctl.errors import UsageError
from pdctl.layout.assembly import Bases, PlannedDeployment, PlannedRole, RoleSide, lay_out
from pdctl.layout.feasibility import broken_rules
from pdctl.layout.hosts import NOWHERE
from pdctl.layout.instance_plan import Plan
from pdctl.layout.serving import Serving
from pdctl.layout.shape import Caution, Problem, Shape, ShapeWords, flags
from pdctl.layout.workload import ISL, MEM_FRACTION, NO_WORKLOAD, UNMEASURED, Budget, Demand, Measured, Nic, TrafficGoal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.layout.hosts import Site
    from pdctl.layout.model_config import ModelShape
    from pdctl.topology.model import Topology


MOST_GPUS = 1 << 16  # more rows than anyone reads
NO_MODEL = "MODEL"  # stands in command lines where no model was given


def plan_topology(
    topology: Topology,
    target: str | None = None,
    measured: Measured = UNMEASURED,
    sites: Mapping[str, Site] = NOWHERE,
) -> Plan:
    """The plan of every instance and the router. Raises UsageError for a model config that cannot be used.

    `target`: local (all on this machine), pools (hosts by pool name) or kubernetes (in pods); None: what the
    topology implies. `sites`: the hosts a target has given in place of the plan's.
    """
    from pdctl.layout.description import describe  # late: a flag-only plan needs nothing of a topology

    return solve(describe(topology, target, measured, sites))


def plan_shape(
    shape: Shape,
    decode: Shape | None = None,
    *,
    version: str | None = None,
    model: str | None = None,
    mla: bool | None = None,
    gpu_memory: int | None = None,
    mem_fraction: float | None = None,
    page_size: int | None = None,
    kv_dtype: str = "auto",
    nic: Nic | None = None,
    workload: TrafficGoal = NO_WORKLOAD,
) -> Plan:
    """One prefill instance of sglang on hosts of its own, and one decode instance if `decode` is given.

    `model` is a checkpoint directory or config.json; without it only `mla` decides how ranks pair.
    """
    release = resolve(version)
    known = _read_model(model)
    budget = Budget(gpu_memory, mem_fraction or MEM_FRACTION, page_size or 1, _itemsize(kv_dtype, known))
    common = Serving(
        kind=RELEASED,
        role="prefill",
        model_path=model or NO_MODEL,
        version=release.known,
        bind="0.0.0.0",
        kv_dtype=kv_dtype,
        page_size=page_size,
        mem_fraction=mem_fraction,
        peer=decode,
    )
    cases = [PlannedRole(RoleSide("prefill", 1, shape, common), _words(""), budget, nic=nic)]
    if decode is not None:
        other = common._replace(role="decode", peer=shape)
        cases.append(PlannedRole(RoleSide("decode", 1, decode, other), _words("decode-"), budget, nic=nic))
    warnings = (Caution("release", release.note),) if release.note else ()
    return solve(
        PlannedDeployment(
            name="",
            engine=RELEASED,
            release=release,
            target="pools",
            cases=tuple(cases),
            bases=Bases(),
            model=known,
            mla=mla,
            workload=workload,
            warnings=warnings,
        )
    )


def _words(side: str) -> ShapeWords:
    return ShapeWords(lambda shape: flags(shape, side), lambda name, value: f"--{name} {value}")


def _read_model(path: str | None) -> ModelShape | None:
    if path is None:
        return None
    from pdctl.layout.model_config import load  # late: json

    return load(path)


def _itemsize(kv_dtype: str, model: ModelShape | None) -> int:
    if model is None and kv_dtype == "auto":
        return 2
    from pdctl.layout.gpu_memory import kv_itemsize

    return kv_itemsize(kv_dtype, model)


def solve(deployment: PlannedDeployment) -> Plan:
    """The complete plan of the deployment; one without instances where a shape breaks a rule.

    Raise UsageError if it has more GPUs than MOST_GPUS.
    """
    gpus = sum(case.side.instances * case.side.shape.gpus for case in deployment.cases)
    if gpus > MOST_GPUS:
        raise UsageError(
            f"this is {gpus} GPUs; a plan has {MOST_GPUS} at most", "plan fewer instances, or a smaller --tp"
        )
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
    sides: list[RoleSide] = []
    for case in deployment.cases:
        side, problems, warnings = _with_memory(deployment, case)
        sides.append(side)
        plan = plan._replace(problems=plan.problems + problems, warnings=plan.warnings + warnings)
    plan = plan._replace(instances=lay_out(sides, deployment.bases, deployment.target, deployment.sites))
    if len(sides) < 2:
        return plan
    from pdctl.layout.handover import hand_over  # late: the rank table of one instance needs nothing of it

    return hand_over(deployment, plan, sides)


def _shape_problems(deployment: PlannedDeployment, case: PlannedRole) -> list[Problem]:
    side, version, redundant = case.side, deployment.release.known, case.placement.redundant_experts
    found = broken_rules(side.shape, version, deployment.model, redundant, deployment.engine)
    if not found:
        return []
    from pdctl.layout.feasibility import nearest  # late: only a shape that does not work has use for it

    def works(shape: Shape) -> bool:
        return not broken_rules(shape, version, deployment.model, redundant)

    ways = tuple(case.words.shape(shape) for shape in nearest(side.shape, works))
    lead = f"{side.role}: " if len(deployment.cases) > 1 else ""
    return [Problem(problem.code, lead + problem.message, ways) for problem in found]


def _with_memory(
    deployment: PlannedDeployment, case: PlannedRole
) -> tuple[RoleSide, tuple[Problem, ...], tuple[Caution, ...]]:
    side, model = case.side, deployment.model
    if model is None:
        return side, (), ()
    from pdctl.layout.gpu_memory import CapacityQuestion, judge_memory  # late: only a known model has memory figures

    wanted = _demand(side, deployment.workload)
    question = CapacityQuestion(
        side.role, model, side.shape, case.placement, case.budget, wanted, deployment.release.known
    )
    memory, problems, warnings = judge_memory(question, case.words)
    return side._replace(memory=memory), problems, warnings


def _demand(side: RoleSide, workload: TrafficGoal) -> Demand:
    """A prefill holds prompts only; a decode holds whole requests, as many at once as Little's law says."""
    context = side.serving.context_length
    isl, osl = workload.isl or 0, workload.osl or 0
    if side.role == "prefill":
        return Demand(isl, None, context)
    at_once = workload.rate * osl * workload.tpot / side.instances if workload.rate and workload.tpot and osl else None
    return Demand(isl + osl, at_once, context)


def assumed(deployment: PlannedDeployment) -> tuple[str, ...]:
    return (*_places(deployment), *_model_assumptions(deployment), *_traffic(deployment))


def _places(deployment: PlannedDeployment) -> Iterator[str]:
    if deployment.target == "pools" and deployment.router is not None:
        yield "hosts of a pool are alike and empty; they are filled in order"
    traceable = all(case.side.serving.traceable for case in deployment.cases)
    if deployment.engine != EMBEDDED and deployment.router is not None and traceable:
        yield "servers log every request with its room and publish metrics; engine.traceable: false leaves that out"
    pace = deployment.cases[0].side.serving.pace
    if pace:
        yield f"passes take the times of the cost profile {pace}, not those of the host"
    if deployment.engine != EMBEDDED and any(case.side.shape.deepep for case in deployment.cases):
        yield "the DeepEP all-to-all makes ep_size equal to tp_size"


def _model_assumptions(deployment: PlannedDeployment) -> Iterator[str]:
    model = deployment.model
    if model is None:
        if deployment.mla is None and len(deployment.cases) == 2:
            yield "no model given, so GQA or MHA: under MLA one prefill rank sends, the others are dummies"
        return
    yield "weights are a lower bound: workspaces, CUDA graphs and absorbed MLA copies come on top"
    fractions = sorted(
        {case.budget.mem_fraction for case in deployment.cases if case.side.serving.mem_fraction is None}
    )
    if any(case.budget.gpu_memory for case in deployment.cases) and fractions:
        yield f"mem-fraction {fractions[0]:g} where none is given; SGLang derives its own from the GPU"
    pages = {case.budget.page_size for case in deployment.cases if case.side.serving.page_size is None}
    if pages:
        yield f"page-size {', '.join(map(str, sorted(pages)))} where none is given"
    widths = {case.budget.kv_bytes for case in deployment.cases}
    yield f"KV elements of {', '.join(map(str, sorted(widths)))} bytes"
    if model.sliding_layers:
        yield f"the {len(model.sliding_layers)} sliding-window layers are counted as if they kept every token"


def _traffic(deployment: PlannedDeployment) -> Iterator[str]:
    if deployment.model is None or len(deployment.cases) < 2:
        return
    if not deployment.workload.isl:
        yield f"a prompt of {ISL:,} tokens, as no workload is given"
    if any(case.nic is not None for case in deployment.cases):
        yield "KV moves at 80 % of line rate, over the NICs of the ranks that hold the request"
