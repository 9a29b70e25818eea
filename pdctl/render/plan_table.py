"""A plan as text: ranks, ports, commands, links, memory and traffic; a terminal gets equal rows merged."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.sglang.endpoints import EPHEMERAL
from pdctl.layout.instance_plan import shell_line, shell_words
from pdctl.loopback import bracketed
from pdctl.render.term import prose, spans, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.layout.kv_links import KvLink
    from pdctl.layout.serving import NodeCommand
    from pdctl.layout.shape import Problem, RankPlace
    from pdctl.layout.transfer_bill import TransferBill
    from pdctl.layout.workload import Ratio
    from pdctl.render.term import Term


SHOWN = 16  # ranks of one instance that a terminal shows row by row

# Title, field, and whether the column is shown even if every rank has a 0 there.
COLUMNS = (
    ("NODE", "node", True),
    ("GPU", "gpu", True),
    ("REPLICA", "dp_rank", False),
    ("PP", "pp_rank", False),
    ("TP", "tp_rank", True),
    ("ATTN_DP", "attn_dp_rank", True),
    ("ATTN_CP", "attn_cp_rank", False),
    ("ATTN_TP", "attn_tp_rank", True),
    ("EP", "moe_ep_rank", True),
    ("MOE_DP", "moe_dp_rank", False),
)
GIB = 1 << 30
MIB = 1 << 20
COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
LEGEND = (
    "each decode rank pulls KV from these ranks of its request's prefill DP group, dummies send nothing; "
    "it is done after ANSWERS answers, and a prefill rank sends once WAITS FOR decode ranks have asked"
)
ROOM_FOR_VALUE = 16  # columns reserved for a flag's value before the line is broken
NO_REPEAT = 2  # from this number of nodes, a terminal shows only the first node's command


def rank_rows(instance: InstancePlan, full: bool) -> tuple[list[str], list[list[object]]]:
    """Header and rows; `full` shows every rank, however many there are."""
    chosen = [(title, field) for title, field, always in COLUMNS if always or _varies(instance, field)]
    header = [title for title, _ in chosen]
    fields = [field for _, field in chosen]
    if full or len(instance.ranks) <= SHOWN:
        return header, [[_cell(rank, field) for field in fields] for rank in instance.ranks]
    rows: list[list[object]] = []
    for node in range(instance.nnodes):
        ranks = [rank for rank in instance.ranks if rank.node == node]
        rows.append([_run(ranks, field) for field in fields])
    return header, rows


def _varies(instance: InstancePlan, field: str) -> bool:
    if field == "dp_rank":
        return instance.shape.replicas > 1
    return any(getattr(rank, field) for rank in instance.ranks)


def _cell(rank: RankPlace, field: str) -> object:
    value = getattr(rank, field)
    return "cpu" if value is None else value


def _run(ranks: list[RankPlace], field: str) -> str:
    values = [getattr(rank, field) for rank in ranks]
    return "cpu" if None in values else spans(values)


def figure_lines(term: Term, plan: Plan) -> Iterator[list[str]]:
    yield _memory(term, plan)
    if plan.transfer is not None:
        yield _transfer(term, plan.transfer)
    if plan.ratio is not None:
        yield _ratio(term, plan.ratio, plan)


def _memory(term: Term, plan: Plan) -> list[str]:
    """One row per role, as its instances are alike."""
    by_role = {one.role: one.memory for one in plan.instances if one.memory is not None}
    rows = [[role, *_row(memory)] for role, memory in by_role.items()]
    header = ["ROLE", "VERDICT", "WEIGHTS", "KV/TOKEN", "KV POOL", "TOKENS", "INSTANCE TOKENS", "REQUESTS"]
    lines = [f"{term.style('memory', 'bold')} per rank", *table(term, header, rows)]
    for role, memory in by_role.items():
        parts = ", ".join(f"{name} {_size(size)}" for name, size in memory.weights)
        lines += prose(
            term, f"{role}:", f"{memory.parameters:,} parameters, {_size(memory.copy_bytes)}; a rank holds: {parts}"
        )
        for reason in memory.reasons:
            lines += prose(term, f"{role} {memory.verdict.value}:", reason, COLORS.get(memory.verdict.value, "dim"))
    return lines


def _row(memory: GpuMemory) -> list[str]:
    known = memory.pool_bytes is not None
    return [
        memory.verdict.value,
        _size(memory.weight_bytes),
        f"{memory.kv_bytes_per_token:,} B",
        _size(memory.pool_bytes) if memory.pool_bytes is not None else "-",
        f"{memory.tokens:,}" if known else "-",
        f"{memory.instance_tokens:,}" if known else "-",
        f"{memory.requests:,}" if memory.requests is not None else "-",
    ]


def _transfer(term: Term, transfer: TransferBill) -> list[str]:
    size = _size(transfer.bytes_per_request)
    copies = f" ({transfer.copies} copies)" if transfer.copies > 1 else ""
    text = f"{transfer.tokens:,} tokens move {transfer.bytes_per_request:,} B ({size}){copies} per request"
    if transfer.seconds is not None and transfer.bits_per_second is not None:
        share = f", {transfer.share_of_ttft:.1%} of the TTFT goal" if transfer.share_of_ttft is not None else ""
        speed = f"{_gbps(transfer.bits_per_second)} at {transfer.efficiency:.0%}"
        nics = "1 NIC" if transfer.nics == 1 else f"{transfer.nics} NICs"
        text += f", in {transfer.seconds * 1e3:.2f} ms over {nics} of a rank group ({speed}){share}"
    lines = prose(term, "transfer:", text, "bold")
    if transfer.window_bytes is not None:
        lines.append(f"with sliding windows only what they keep: {_size(transfer.window_bytes)} per request")
    if transfer.required_bits_per_second is not None:
        need = f"{transfer.rate:g} requests/s need {_gbps(transfer.required_bits_per_second)}"
        have = transfer.available_bits_per_second
        lines.append(need + (f" of {_gbps(have)} (the slower side's NICs, {transfer.efficiency:.0%})" if have else ""))
    return lines


def _ratio(term: Term, ratio: Ratio, plan: Plan) -> list[str]:
    prefills = sum(one.role == "prefill" for one in plan.instances)
    decodes = len(plan.instances) - prefills
    need_p, need_d = ratio.instances
    parts = [f"each of {prefills} prefill instances has to sustain {ratio.prefill_rate_needed:,.0f} input tokens/s"]
    if need_p is not None:
        parts.append(f"{ratio.prefill:.2f} prefill instances needed, so {need_p}")
    if ratio.concurrency is not None:
        parts.append(f"{ratio.concurrency:,.0f} requests decode at once")
    if need_d is not None:
        batch = f"{ratio.batch:,} requests each" if ratio.batch is not None else ""
        parts.append(f"{ratio.decode:.2f} decode instances needed at {batch}, so {need_d} ({decodes} planned)")
    if ratio.bottleneck is not None:
        parts.append(f"{ratio.bottleneck} is the tighter side")
    return prose(term, "ratio:", "; ".join(parts), "bold")


def _size(size: int) -> str:
    return f"{size / GIB:.3f} GiB" if abs(size) >= GIB // 100 else f"{size / MIB:.2f} MiB"


def _gbps(bits: float) -> str:
    return f"{bits / 1e9:,.1f} Gb/s"


def link_lines(term: Term, plan: Plan) -> list[str]:
    """One row per decode attention TP rank, because all DP groups and all pairs of instances pull alike."""
    groups: dict[tuple[object, ...], list[KvLink]] = {}
    for link in plan.links:
        groups.setdefault(_answer(link), []).append(link)
    staged = any(len(link.prefill_pp_ranks) > 1 or link.decode_pp_rank for link in plan.links)
    prefixed = any(instance.shape.cp > 1 for instance in plan.instances)
    header = ["DECODE", "ATTN_DP", "ATTN_TP", "PULLS FROM", "ATTN_TP RANKS", "DUMMIES", "ANSWERS", "WAITS FOR"]
    sliced = _sliced(plan)
    if sliced:
        header.insert(5, "KV HEADS")
    if staged:
        header += ["PP", "FROM PP"]
    if prefixed:
        header += ["FROM CP"]
    rows: list[list[object]] = []
    for links in groups.values():
        one = links[0]
        row: list[object] = [
            _names([link.decode for link in links]),
            spans([link.decode_attn_dp_rank for link in links]),
            str(one.decode_attn_tp_rank),
            _names([link.prefill for link in links]),
            _listed(one.prefill_ranks),
            _listed(one.dummy_ranks),
            one.required_prefill_response_num,
            one.required_dst_info_num,
        ]
        if sliced:
            row.insert(5, _heads(one, plan))
        if staged:
            row += [str(one.decode_pp_rank), _listed(one.prefill_pp_ranks)]
        if prefixed:
            row += [_listed(one.prefill_cp_ranks)]
        rows.append(row)
    return [*prose(term, "links:", LEGEND, "bold"), *table(term, header, rows)]


def _sliced(plan: Plan) -> bool:
    """Whether to show head ranges: only if the two sides split the heads differently."""
    widths = {instance.attn_tp_size for instance in plan.instances}
    return len(widths) > 1 and any(link.slices for link in plan.links)


def _heads(link: KvLink, plan: Plan) -> str:
    """The heads pulled, in each prefill rank's own numbering: `2-3 of rank 0`."""
    parts = [
        f"{part.source}-{part.source + part.heads - 1}" if part.heads > 1 else str(part.source) for part in link.slices
    ]
    return ", ".join(f"{text} of rank {part.prefill_rank}" for text, part in zip(parts, link.slices, strict=True))


def _answer(link: KvLink) -> tuple[object, ...]:
    return (link.decode_attn_tp_rank, link.decode_pp_rank, *link[6:])


def _names(names: list[str]) -> str:
    """`prefill-0..3` for a run of instances."""
    found = list(dict.fromkeys(names))
    if len(found) == 1:
        return found[0]
    return f"{found[0]}..{found[-1].rpartition('-')[2]}"


def _listed(ranks: tuple[int, ...]) -> str:
    """The ranks in the order they are contacted; a long run is given by its ends."""
    if not ranks:
        return "-"
    rising = ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
    return f"{ranks[0]}..{ranks[-1]}" if rising and len(ranks) > 8 else ",".join(map(str, ranks))


def port_lines(term: Term, plan: Plan, full: bool) -> list[str]:
    """The ports by host; a terminal gets one row per instance and host, a pipe one per port."""
    rows: list[list[object]] = []
    for instance in plan.instances:
        for node, host in enumerate(instance.host_names):
            ports = sorted((port.port, port.purpose, port.protocol) for port in instance.ports if port.node == node)
            if full:
                rows += [[host, instance.name, number, purpose, protocol] for number, purpose, protocol in ports]
            else:
                rows.append([host, instance.name, _runs([(number, purpose) for number, purpose, _ in ports])])
    if plan.router is not None:
        router = plan.router
        if full:
            rows += [[router.host_name, router.name, number, purpose, "http"] for number, purpose in router.ports]
        else:
            rows.append([router.host_name, router.name, _runs(list(router.ports))])
    header = ["HOST", "INSTANCE", "PORT", "PURPOSE", "PROTOCOL"] if full else ["HOST", "INSTANCE", "PORTS"]
    taken = [problem for problem in plan.problems if problem.code in ("port-collision", "port-range")]
    verdict = term.style(f"{len(taken)} collide, see below", "red") if taken else "no two collide"
    more = f"; every rank also picks its own at random: {', '.join(EPHEMERAL)}" if plan.engine != EMBEDDED else ""
    return [f"{term.style('ports:', 'bold')} {verdict}{more}", *table(term, header, rows)]


def command_lines(term: Term, plan: Plan, full: bool) -> list[str]:
    """One command per node, ready to paste. For further nodes, a terminal gets only the difference."""
    lines = [term.style("commands", "bold")]
    for instance in plan.instances:
        lines += _instance(term, instance, full)
    if plan.router is not None:
        lines += [_comment(term, f"router on {plan.router.host_name}"), *_folded(term, plan.router.command)]
    return lines


def shell_script(plan: Plan) -> list[str]:
    """Every command with a comment that says where it runs; only comments if the plan is infeasible."""
    lines = [f"# infeasible: {problem.code}: {problem.message}" for problem in plan.problems]
    lines += [f"#   nearest: {way}" for problem in plan.problems for way in problem.nearest]
    lines += [f"# warning: {warning.code}: {warning.message}" for warning in plan.warnings]
    if not plan.feasible:
        return lines
    for instance in plan.instances:
        for command in instance.commands:
            lines.append(f"# {instance.name} node {command.node} on {instance.host_names[command.node]}")
            lines.append(shell_line(command))
    if plan.router is not None:
        lines += [f"# router on {plan.router.host_name}", shell_line(plan.router.command)]
    return lines


def _instance(term: Term, instance: InstancePlan, full: bool) -> list[str]:
    shown = instance.commands if full or len(instance.commands) < NO_REPEAT else instance.commands[:1]
    lines: list[str] = []
    for command in shown:
        node = f" node {command.node}" if instance.nnodes > 1 else ""
        lines.append(_comment(term, f"{instance.name}{node} on {instance.host_names[command.node]}"))
        lines += _folded(term, command)
    if len(shown) < len(instance.commands):
        last = len(instance.commands) - 1
        others = "node 1" if last == 1 else f"nodes 1 to {last}"
        hosts = ", ".join(instance.host_names[1:])
        lines.append(_comment(term, f"{instance.name} {others} on {hosts}: the same but for --node-rank"))
    return lines


def _folded(term: Term, command: NodeCommand) -> list[str]:
    """The command: one line in a pipe; on a terminal broken before flags, with backslashes for the shell."""
    if not term.tty:
        return [shell_line(command)]
    lines = [""]
    for part in shell_words(command):
        flag = part.startswith("--")
        if flag and lines[-1] and len(lines[-1]) + len(part) + ROOM_FOR_VALUE > term.width:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _comment(term: Term, text: str) -> str:
    return term.style(f"# {text}", "dim")


def _runs(ports: list[tuple[int, str]]) -> str:
    """`http 30000, tokenizer..rpc 20001-20003`: consecutive ports as one range."""
    parts: list[str] = []
    for _, run in groupby(enumerate(ports), key=lambda at: at[1][0] - at[0]):
        numbers = [port for _, port in run]
        first, last = numbers[0], numbers[-1]
        parts.append(f"{first[1]} {first[0]}" if first == last else f"{first[1]}..{last[1]} {first[0]}-{last[0]}")
    return ", ".join(parts)


def show(term: Term, plan: Plan, wide: bool = False) -> None:
    """Write the whole plan. A pipe gets every row; a terminal gets runs of equal rows merged, unless `wide`."""
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
    for alike in _group_alike(plan):
        yield [*_summary(term, plan, alike), *_ranks(term, alike[0], full)]
    if plan.links:
        yield link_lines(term, plan)
    if deployed and plan.instances:
        yield port_lines(term, plan, full)
        yield command_lines(term, plan, full)
    if any(instance.memory is not None for instance in plan.instances):
        yield from figure_lines(term, plan)
    notes = _notes(term, plan)
    if notes:
        yield notes


def _headline(term: Term, plan: Plan) -> list[str]:
    verdict = term.style("feasible", "green") if plan.feasible else term.style("infeasible", "red", "bold")
    what = f"sglang {plan.version}" if plan.engine != EMBEDDED else "embedded engine"
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
        rows.append([router.name, router.host_name, f"http://{bracketed(router.address)}:{router.port}", "-", "-"])
    return table(term, ["INSTANCE", "HOSTS", "URL", "BOOTSTRAP", "RANKS"], rows)


def _group_alike(plan: Plan) -> list[list[InstancePlan]]:
    """Group instances whose rank tables are the same."""
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
    """What is wrong, then the nearest plans that work, one per line, ready to paste."""
    lines = prose(term, "infeasible:", f"{problem.code}: {problem.message}", "red", "bold")
    return lines + [f"  nearest: {way}" for way in problem.nearest]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
