"""What prefill and decode ask of each other: rules between them, the router in front, KV links and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang.agreement import common_page_size
from pdctl.engines.sglang.endpoints import LAST_PORT
from pdctl.engines.sglang.refusals import ALL_CP_RANKS_ENV, HETEROGENEOUS_TP, STAGING_ENV, STAGING_SPAN, rule
from pdctl.layout import commands
from pdctl.layout.assembly import Bases, lay_out
from pdctl.layout.feasibility import broken_rules, explain, nearest
from pdctl.layout.hosts import NOWHERE
from pdctl.layout.instance_plan import RouterPlan
from pdctl.layout.kv_links import KvLink, pull
from pdctl.layout.shape import Caution, Problem, Shape
from pdctl.layout.transfer_bill import Nics, bill
from pdctl.layout.workload import ISL, ratio
from pdctl.loopback import is_loopback
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.versions import Version
    from pdctl.layout.assembly import PlannedDeployment, PlannedRole, RoleSide
    from pdctl.layout.hosts import Site
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.layout.transfer_bill import TransferBill
    from pdctl.layout.workload import Ratio
    from pdctl.topology.model import Router


SHOWN = 3  # ways out of a port collision
V6_ONLY = ("::", "::1")  # a router that listens there takes no connection to 127.0.0.1
EVERYWHERE = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # addresses to listen on, not to call


def hand_over(deployment: PlannedDeployment, plan: Plan, sides: Sequence[RoleSide]) -> Plan:
    """The plan of two sides, completed; without links when the two cannot work together."""
    router = _router(deployment, deployment.router, plan.instances) if deployment.router is not None else None
    at_odds = _pair_problems(deployment)
    met = _port_problems(deployment, plan.instances, sides, router)
    plan = plan._replace(router=router, problems=(*plan.problems, *at_odds, *met))
    if at_odds:
        return plan
    return _with_traffic(deployment, plan._replace(warnings=plan.warnings + _cautions(deployment)))


def _pair_problems(deployment: PlannedDeployment) -> list[Problem]:
    """Proposes changes to the decode side only; for the page size, the one that doctor proposes too."""
    (prefill, decode), version = deployment.cases, deployment.release.known
    pages = prefill.side.serving.page_size, decode.side.serving.page_size
    found = check_pair(prefill.side.shape, decode.side.shape, version, pages, deployment.engine)

    def works(shape: Shape) -> bool:
        alone = broken_rules(shape, version, deployment.model, decode.placement.redundant_experts)
        return not alone and not check_pair(prefill.side.shape, shape, version)

    def ways(problem: Problem) -> tuple[str, ...]:
        if problem.code == "pair-page-size":
            agreed = common_page_size(*pages)
            sides = ((prefill, pages[0]), (decode, pages[1]))
            return (" ".join(side.words.setting("page-size", str(agreed)) for side, page in sides if page != agreed),)
        return tuple(decode.words.shape(shape) for shape in nearest(decode.side.shape, works))

    return [Problem(problem.code, problem.message, ways(problem)) for problem in found]


def check_pair(
    prefill: Shape,
    decode: Shape,
    version: Version,
    pages: tuple[int | None, int | None] = (None, None),
    engine: str = RELEASED,
) -> tuple[Problem, ...]:
    """Rules SGLang keeps, or should, between two instances. `pages` are the page sizes given for the two."""
    return tuple(
        Problem(code, explain(code, what, version, engine))
        for code, what in _findings(prefill, decode, pages)
        if rule(code, version) is not None
    )


def _findings(prefill: Shape, decode: Shape, pages: tuple[int | None, int | None]) -> Iterator[tuple[str, str]]:
    if max(prefill.tp, decode.tp) % min(prefill.tp, decode.tp):
        yield "pair-tp-divides", f"prefill tp_size {prefill.tp}, decode tp_size {decode.tp}"
    widths = prefill.attn_tp_size, decode.attn_tp_size
    if max(widths) % min(widths):
        yield "pair-attn-tp-divides", f"prefill attn_tp_size {widths[0]}, decode attn_tp_size {widths[1]}"
    if decode.pp not in (1, prefill.pp):
        yield "pair-pp", f"prefill pp_size {prefill.pp}, decode pp_size {decode.pp}"
    if decode.cp > 1:
        yield "pair-decode-cp", f"decode attn_cp_size {decode.cp}"
    if None not in pages and pages[0] != pages[1]:
        yield "pair-page-size", f"prefill page_size {pages[0]}, decode page_size {pages[1]}"


def _cautions(deployment: PlannedDeployment) -> tuple[Caution, ...]:
    prefill, decode = (case.side for case in deployment.cases)
    mla = deployment.model.mla if deployment.model is not None else deployment.mla
    pages = prefill.serving.page_size, decode.serving.page_size
    embedded = deployment.engine == EMBEDDED
    return tuple(cautions(prefill.shape, decode.shape, deployment.release.known, mla, deployment.env, pages, embedded))


def cautions(
    prefill: Shape,
    decode: Shape,
    version: Version,
    mla: bool | None,
    env: Mapping[str, str],
    pages: tuple[int | None, int | None] = (None, None),
    embedded: bool = False,
) -> Iterator[Caution]:
    """`mla` None: the model is not known. `env` is what both sides run with."""
    if pages[0] != pages[1] and None in pages:
        one, other = ("prefill", "decode") if pages[0] is not None else ("decode", "prefill")
        said = f"page_size {pages[0] or pages[1]} is given for {one} only"
        yield Caution("page-size-one-side", f"{said}; {other} resolves its own, which must come to the same")
    widths = prefill.attn_tp_size, decode.attn_tp_size
    if widths[0] == widths[1] or mla:
        return
    if embedded:
        sizes = f"attn_tp_size {widths[0]} to {widths[1]}"
        message = f"{sizes}: heads are cut out of each token of a page, which takes longer to move than whole pages"
        yield Caution("gqa-different-tp", message)
        return
    unless = "" if mla is False else "if the model is not MLA, "
    message = f"{unless}sglang warns: {HETEROGENEOUS_TP} (attn_tp_size {widths[0]} to {widths[1]})"
    if STAGING_SPAN.holds(version):
        staged = env.get(STAGING_ENV, "").lower() in ("1", "true", "yes")
        message += f"; {STAGING_ENV} is set, which gathers the heads first" if staged else f"; set {STAGING_ENV}=1"
    yield Caution("gqa-different-tp", message)


def _router(deployment: PlannedDeployment, spec: Router, instances: tuple[InstancePlan, ...]) -> RouterPlan:
    """On the first prefill's host, as it needs no GPU; in Kubernetes in a pod of its own."""
    prefills = [(one.url, one.bootstrap_port) for one in instances if one.role == "prefill"]
    decodes = [one.url for one in instances if one.role == "decode"]
    first = next(one for one in instances if one.role == "prefill")
    env = tuple(deployment.env.items()) if spec.kind == "pdctl" else ()
    host, reached = first.host_name, first.address if spec.host in EVERYWHERE else spec.host
    if spec.host in V6_ONLY and is_loopback(first.address):
        reached = "::1"
    if deployment.target == "kubernetes":
        host = reached = f"{deployment.name}-router"
    command = commands.router(spec, prefills, decodes, env)
    metrics = commands.router_metrics(spec)
    return RouterPlan("router", spec.host, host, reached, spec.port, command, metrics)


def _port_problems(
    deployment: PlannedDeployment,
    instances: tuple[InstancePlan, ...],
    sides: Sequence[RoleSide],
    router: RouterPlan | None,
) -> tuple[Problem, ...]:
    found = claims(instances)
    if router is None:
        return collisions(found)
    found += [PortClaim(router.host_name, port, router.name, purpose) for port, purpose in router.ports]
    problems = collisions(found)
    if not problems:
        return ()
    ways = moves(sides, deployment.bases, deployment.target, router, deployment.sites)
    return tuple(problem._replace(nearest=ways) for problem in problems)


def _with_traffic(deployment: PlannedDeployment, plan: Plan) -> Plan:
    version, model = deployment.release.known, deployment.model
    mla = model.mla if model is not None else bool(deployment.mla)
    all_cp = deployment.env.get(ALL_CP_RANKS_ENV, "").lower() in ("1", "true", "yes")
    kv_heads = model.kv_heads if model is not None else None
    plan = plan._replace(links=links(plan.instances, version, mla, kv_heads, all_cp))
    if model is None:
        return plan
    bill, ratio = transfer(deployment, plan.instances), shares(deployment, plan.instances)
    told = tuple(capacity_shortfalls(bill, ratio, plan.instances))
    return plan._replace(transfer=bill, ratio=ratio, warnings=plan.warnings + told)


def links(
    instances: tuple[InstancePlan, ...], version: Version, mla: bool, kv_heads: int | None, all_cp_ranks: bool
) -> tuple[KvLink, ...]:
    """Every decode rank's pull from every prefill instance."""
    prefills = [one for one in instances if one.role == "prefill"]
    decodes = [one for one in instances if one.role == "decode"]
    return tuple(
        link
        for prefill in prefills
        for decode in decodes
        for link in pull(
            prefill.name,
            decode.name,
            prefill.shape,
            decode.shape,
            mla=mla,
            kv_heads=kv_heads,
            all_cp_ranks=all_cp_ranks,
            version=version,
        )
    )


def transfer(deployment: PlannedDeployment, instances: tuple[InstancePlan, ...]) -> TransferBill:
    model, workload = deployment.model, deployment.workload
    assert model is not None
    prefill, decode = deployment.cases
    return bill(
        model,
        prefill.side.shape,
        decode.side.shape,
        isl=workload.isl or ISL,
        page_size=prefill.budget.page_size,
        itemsize=prefill.budget.kv_bytes,
        nics=(_nics(prefill, instances), _nics(decode, instances)),
        rate=workload.rate,
        ttft=workload.ttft,
    )


def _nics(case: PlannedRole, instances: tuple[InstancePlan, ...]) -> Nics | None:
    if case.nic is None:
        return None
    hosts = {host for one in instances if one.role == case.side.role for host in one.host_names}
    return Nics(case.nic.speed, case.nic.per_host, len(hosts))


def shares(deployment: PlannedDeployment, instances: tuple[InstancePlan, ...]) -> Ratio | None:
    """None without a request rate. The decode batch is the measured one, else what the KV pool holds."""
    workload, measured = deployment.workload, deployment.measured
    if not (workload.rate and workload.isl and workload.osl):
        return None
    held = {role: [one for one in instances if one.role == role] for role in ("prefill", "decode")}
    memory = held["decode"][0].memory
    return ratio(
        rate=workload.rate,
        isl=workload.isl,
        osl=workload.osl,
        hit=workload.hit,
        tpot=workload.tpot,
        prefill_rate=measured.prefill_rate,
        batch=measured.decode_batch or (memory.requests if memory is not None else None),
        have=(len(held["prefill"]), len(held["decode"])),
    )


def capacity_shortfalls(
    bill: TransferBill, ratio: Ratio | None, instances: tuple[InstancePlan, ...]
) -> Iterator[Caution]:
    """What the workload needs beyond what is planned."""
    need, have = bill.required_bits_per_second, bill.available_bits_per_second
    if need is not None and have is not None and need > have:
        yield Caution(
            "nic", f"the KV cache needs {need / 1e9:,.1f} Gb/s, the slower side's NICs carry {have / 1e9:,.1f}"
        )
    if ratio is None:
        return
    for role, needed in zip(("prefill", "decode"), ratio.instances, strict=True):
        planned = sum(one.role == role for one in instances)
        if needed is not None and needed > planned:
            yield Caution("ratio", f"the workload needs {needed} {role} instances, {planned} planned")


class PortClaim(NamedTuple):
    """A port that a process binds: `owner` is an instance's name or `router`."""

    host: str
    port: int
    owner: str
    purpose: str


def claims(instances: Iterable[InstancePlan]) -> list[PortClaim]:
    """Every port of every instance, on the host it is bound on."""
    return [
        PortClaim(one.host_names[port.node], port.port, one.name, port.purpose)
        for one in instances
        for port in one.ports
    ]


def collisions(claims: Iterable[PortClaim]) -> tuple[Problem, ...]:
    """One problem per port claimed twice or out of range; `nearest` stays empty (see `moves`)."""
    taken: dict[tuple[str, int], PortClaim] = {}
    problems: list[Problem] = []
    for claim in claims:
        name = f"{claim.owner}'s {claim.purpose} port {claim.port}"
        if not 0 < claim.port <= LAST_PORT:
            problems.append(Problem("port-range", f"{name} on {claim.host} is outside 1 to {LAST_PORT}"))
            continue
        other = taken.setdefault((claim.host, claim.port), claim)
        if other is not claim:
            problems.append(
                Problem("port-collision", f"{name} on {claim.host} is also {other.owner}'s {other.purpose} port")
            )
    return tuple(problems)


def moves(
    sides: Sequence[RoleSide], bases: Bases, target: str, router: RouterPlan, sites: Mapping[str, Site] = NOWHERE
) -> tuple[str, ...]:
    """Up to SHOWN single changes that end every collision, as `--set` words; none where it takes two."""
    found: list[str] = []
    for words, moved, port in _candidates(bases, router.port):
        wanted = claims(lay_out(sides, moved, target, sites))
        own = router._replace(port=port).ports
        wanted += [PortClaim(router.host_name, number, router.name, purpose) for number, purpose in own]
        if not collisions(wanted):
            found.append(words)
    return tuple(found[:SHOWN])


def _candidates(bases: Bases, port: int) -> Iterator[tuple[str, Bases, int]]:
    """First the default stride, which is what too short a stride needs; then each base port moved."""
    if bases.stride < Bases().stride:
        yield f"--set ports.stride={Bases().stride}", bases._replace(stride=Bases().stride), port
    for step in (100, 1000, -1000, 10000, -10000):
        yield f"--set router.port={port + step}", bases, port + step
        yield f"--set ports.http={bases.http + step}", bases._replace(http=bases.http + step), port
        yield f"--set ports.bootstrap={bases.bootstrap + step}", bases._replace(bootstrap=bases.bootstrap + step), port
        yield f"--set ports.dist-init={bases.dist + step}", bases._replace(dist=bases.dist + step), port
