"""A plan for people: what runs where, who pulls from whom, what it holds and what moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import prose, table
from pdctl.render.plan_ranks import rank_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.layout.shape import Problem
    from pdctl.render.term import Term


def show(term: Term, plan: Plan, wide: bool = False) -> None:
    """The whole plan. A pipe gets every row; a terminal gets runs of like rows as one, unless `wide`."""
    first = True
    for block in _blocks(term, plan, wide or not term.tty):
        if not first:
            term.write()
        for line in block:
            term.write(line)
        first = False


def _blocks(term: Term, plan: Plan, full: bool) -> Iterator[list[str]]:
    deployed = plan.router is not None or bool(plan.name)
    if deployed:
        yield _headline(term, plan)
        if plan.instances:
            yield _overview(term, plan)
    for alike in _alike(plan):
        yield [*_summary(term, plan, alike), *_ranks(term, alike[0], full)]
    if plan.links:
        from pdctl.render.plan_links import link_lines

        yield link_lines(term, plan)
    if deployed and plan.instances:
        from pdctl.render.plan_places import command_lines, port_lines

        yield port_lines(term, plan, full)
        yield command_lines(term, plan, full)
    if any(instance.memory is not None for instance in plan.instances):
        from pdctl.render.plan_figures import figure_lines

        yield from figure_lines(term, plan)
    notes = _notes(term, plan)
    if notes:
        yield notes


def _headline(term: Term, plan: Plan) -> list[str]:
    verdict = term.style("feasible", "green") if plan.feasible else term.style("infeasible", "red", "bold")
    what = f"sglang {plan.version}" if plan.engine == "sglang" else "embedded engine"
    parts = [f"{term.style(plan.name, 'bold')}: {verdict}", what]
    hosts = plan.host_names
    if hosts:
        parts.append("this machine" if plan.target == "local" else _count(len(hosts), "host"))
    on_gpus = any(rank.gpu is not None for instance in plan.instances for rank in instance.ranks)
    if on_gpus:
        offered = sum({host: one.shape.gpus_per_host for one in plan.instances for host in one.host_names}.values())
        parts.append(f"{_count(plan.gpus, 'GPU')} used, {max(0, offered - plan.gpus)} idle")
    return [", ".join(parts)]


def _overview(term: Term, plan: Plan) -> list[str]:
    rows: list[list[object]] = []
    for one in plan.instances:
        bootstrap = one.bootstrap_port if one.bootstrap_port is not None else "-"
        rows.append([one.name, ",".join(dict.fromkeys(one.host_names)), one.url, bootstrap, len(one.ranks)])
    if plan.router is not None:
        router = plan.router
        rows.append([router.name, router.host_name, f"http://{router.address}:{router.port}", "-", "-"])
    return table(term, ["INSTANCE", "HOSTS", "URL", "BOOTSTRAP", "RANKS"], rows)


def _alike(plan: Plan) -> list[list[InstancePlan]]:
    """Instances whose rank tables are the same, together."""
    groups: dict[object, list[InstancePlan]] = {}
    for instance in plan.instances:
        groups.setdefault((instance.role, instance.ranks), []).append(instance)
    return list(groups.values())


def _summary(term: Term, plan: Plan, alike: list[InstancePlan]) -> list[str]:
    shape = alike[0].shape
    sizes = {
        "tp_size": shape.tp,
        "attn_dp_size": shape.dp,
        "attn_tp_size": shape.attn_tp_size,
        "ep_size": shape.ep_size,
        "pp_size": shape.pp,
        "attn_cp_size": shape.cp,
        "moe_dp_size": shape.moe_dp,
        "replicas": shape.replicas,
    }
    always = ("tp_size", "attn_dp_size", "attn_tp_size", "ep_size")
    told = ", ".join(f"{name} {size}" for name, size in sizes.items() if name in always or size > 1)
    places = _count(shape.nodes, "node")
    names = ", ".join(instance.name for instance in alike)
    release = "" if plan.name else f", sglang {plan.version}"
    each = " each" if len(alike) > 1 else ""
    count = f"{_count(shape.gpus, 'rank' if alike[0].ranks[0].gpu is None else 'GPU')} on {places}{each}"
    return prose(term, f"{names}:", f"{told}, {count}{release}", "bold")


def _ranks(term: Term, instance: InstancePlan, full: bool) -> list[str]:
    header, rows = rank_rows(instance, full)
    return table(term, header, rows)


def _notes(term: Term, plan: Plan) -> list[str]:
    lines: list[str] = []
    for problem in plan.problems:
        lines += problem_lines(term, problem)
    for warning in plan.warnings:
        lines += prose(term, "warning:", f"{warning.code}: {warning.message}", "yellow", "bold")
    for sentence in plan.assumptions:
        lines += prose(term, "assumed:", sentence, "dim")
    return lines


def problem_lines(term: Term, problem: Problem) -> list[str]:
    """What is wrong, then each nearest thing that works on a line of its own, ready to paste."""
    lines = prose(term, "infeasible:", f"{problem.code}: {problem.message}", "red", "bold")
    return lines + [f"  nearest: {way}" for way in problem.nearest]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
