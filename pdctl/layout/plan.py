"""The door to this room: a topology in, or a bare shape, and everything that follows from it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.versions import resolve
from pdctl.layout.assembly import Bases, Side
from pdctl.layout.deployment import Case, Deployment
from pdctl.layout.hosts import NOWHERE
from pdctl.layout.instance import Caution, Instance, Plan, RouterPlan
from pdctl.layout.serving import Serving
from pdctl.layout.shape import Shape, Words, flags
from pdctl.layout.solve import solve
from pdctl.layout.workload import MEM_FRACTION, NO_WORKLOAD, UNMEASURED, Budget, Measured, Nic, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.layout.hosts import Site
    from pdctl.layout.model_config import ModelShape
    from pdctl.topology.model import Topology

__all__ = ["Caution", "Instance", "Plan", "RouterPlan", "plan_shape", "plan_topology"]

NO_MODEL = "MODEL"  # stands in command lines where no model was given


def plan_topology(
    topology: Topology,
    target: str | None = None,
    measured: Measured = UNMEASURED,
    sites: Mapping[str, Site] = NOWHERE,
) -> Plan:
    """The plan of every instance and the router. Raises UsageError for a model config that cannot be used.

    `target`: local (all on this machine) or pools (hosts by pool name); None: what the topology means. `sites`: the
    hosts a target has given for the plan's own.
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
    workload: Workload = NO_WORKLOAD,
) -> Plan:
    """One prefill instance of sglang on hosts of its own, and one decode instance if `decode` is given.

    `model` is a checkpoint directory or config.json; without it only `mla` decides how ranks pair.
    """
    release = resolve(version)
    known = _model(model)
    budget = Budget(gpu_memory, mem_fraction or MEM_FRACTION, page_size or 1, _itemsize(kv_dtype, known))
    common = Serving(
        kind="sglang",
        role="prefill",
        model_path=model or NO_MODEL,
        version=release.known,
        bind="0.0.0.0",
        kv_dtype=kv_dtype,
        page_size=page_size,
        mem_fraction=mem_fraction,
        peer=decode,
    )
    cases = [Case(Side("prefill", 1, shape, common), _words(""), budget, nic=nic)]
    if decode is not None:
        other = common._replace(role="decode", peer=shape)
        cases.append(Case(Side("decode", 1, decode, other), _words("decode-"), budget, nic=nic))
    warnings = (Caution("release", release.note),) if release.note else ()
    return solve(
        Deployment(
            name="",
            engine="sglang",
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


def _words(side: str) -> Words:
    return Words(lambda shape: flags(shape, side), lambda name, value: f"--{name} {value}")


def _model(path: str | None) -> ModelShape | None:
    if path is None:
        return None
    from pdctl.layout.model_config import load  # late: json

    return load(path)


def _itemsize(kv_dtype: str, model: ModelShape | None) -> int:
    if model is None:
        return 2
    from pdctl.layout.memory import kv_itemsize

    return kv_itemsize(kv_dtype, model)
