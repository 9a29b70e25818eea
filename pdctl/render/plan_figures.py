"""A plan's figures: memory per rank, the transfer bill, and the instances a workload needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.instance_plan import Plan
    from pdctl.layout.transfer_bill import TransferBill
    from pdctl.layout.workload import Ratio
    from pdctl.render.term import Term

GIB = 1 << 30
MIB = 1 << 20
COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def figure_lines(term: Term, plan: Plan) -> Iterator[list[str]]:
    yield _memory(term, plan)
    if plan.transfer is not None:
        yield _transfer(term, plan.transfer)
    if plan.ratio is not None:
        yield _ratio(term, plan.ratio, plan)


def _memory(term: Term, plan: Plan) -> list[str]:
    """One row per role: its instances are alike."""
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
