"""What a workload asks of a planned deployment: requests at once, KV on the wire, instances of each side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.instance_plan import Caution
from pdctl.layout.transfer_bill import Nics, bill
from pdctl.layout.workload import ISL, Demand, ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.assembly import RoleSide
    from pdctl.layout.instance_plan import InstancePlan
    from pdctl.layout.planned_deployment import PlannedDeployment, PlannedRole
    from pdctl.layout.transfer_bill import TransferBill
    from pdctl.layout.workload import Ratio, TrafficGoal


def demand(side: RoleSide, workload: TrafficGoal) -> Demand:
    """A prefill holds prompts only; a decode holds whole requests, as many at once as Little's law says."""
    context = side.serving.context_length
    isl, osl = workload.isl or 0, workload.osl or 0
    if side.role == "prefill":
        return Demand(isl, None, context)
    at_once = workload.rate * osl * workload.tpot / side.instances if workload.rate and workload.tpot and osl else None
    return Demand(isl + osl, at_once, context)


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


def short(bill: TransferBill, ratio: Ratio | None, instances: tuple[InstancePlan, ...]) -> Iterator[Caution]:
    """Where the workload asks for more than is planned."""
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


def _nics(case: PlannedRole, instances: tuple[InstancePlan, ...]) -> Nics | None:
    if case.nic is None:
        return None
    hosts = {host for one in instances if one.role == case.side.role for host in one.host_names}
    return Nics(case.nic.speed, case.nic.per_host, len(hosts))
