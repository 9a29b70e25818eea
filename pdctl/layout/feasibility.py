"""Whether a shape can run: the rules SGLang checks at start and those it does not, and the closest shapes that work."""

from __future__ import annotations

from itertools import combinations
from math import log2
from typing import TYPE_CHECKING, Any

from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang.behaviour import ATTENTION_WIDTH_HAS_A_FIELD
from pdctl.engines.versions import NEWEST, Version, spell
from pdctl.layout.shape import Problem, Shape, gpu_id, on_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.layout.model_config import ModelShape


SIZES = ("tp", "dp", "pp", "ep", "cp", "moe_dp", "replicas", "nnodes", "gpus_per_host")

Finding = tuple[str, str]  # rule code, what is wrong in this shape's numbers
AXES = ("dp", "ep", "cp", "moe_dp", "replicas", "pp", "tp", "nnodes")
COST = {"tp": 2.0, "pp": 2.0, "replicas": 2.0, "nnodes": 1.5}  # axes that change the number of GPUs or hosts weigh more
SHOWN = 3
WIDEST = 256  # no axis is tried further than this


def broken_rules(
    shape: Shape,
    version: Version = NEWEST,
    model: ModelShape | None = None,
    redundant_experts: int = 0,
    engine: str = RELEASED,
) -> tuple[Problem, ...]:
    """Every rule the shape breaks in this release; `nearest` stays empty (see `nearest`)."""
    found = list(_findings(shape, version, model, redundant_experts))
    if not found:
        return ()
    from pdctl.engines.sglang.refusals import rule  # late: only a broken rule has to be explained

    return tuple(
        Problem(code, explain(code, what, version, engine)) for code, what in found if rule(code, version) is not None
    )


def explain(code: str, what: str, version: Version, engine: str = RELEASED) -> str:
    """`what` with the rule in SGLang's terms, the release, and how that release answers."""
    from pdctl.engines.sglang.refusals import Enforced, rule  # late, as above

    row = rule(code, version)
    if row is None:
        raise KeyError(f"no rule {code} for sglang {spell(version)}")
    if engine == EMBEDDED:
        return f"{what} (the embedded engine needs {row.terms})"
    answers = {
        Enforced.ASSERT: "asserts {}",
        Enforced.ERROR: "raises ValueError: {}",
        Enforced.FLAG: "says: {}",
        Enforced.RUN_TIME: "fails after start-up unless {}",
        Enforced.NOTHING: "does not check that {}, and goes wrong silently",
    }
    return f"{what} (sglang {spell(version)} {answers[row.enforced].format(row.terms)})"


def _findings(shape: Shape, version: Version, model: ModelShape | None, redundant: int) -> Iterator[Finding]:
    sizes = [(name, getattr(shape, name)) for name in SIZES]
    bad = [f"{name} {size}" for name, size in sizes if size is not None and size < 1]
    if bad:
        yield "sizes-positive", ", ".join(bad)
        return
    if shape.base_gpu_id < 0 or shape.gpu_id_step < 1:
        yield "gpu-ids", f"base_gpu_id {shape.base_gpu_id}, gpu_id_step {shape.gpu_id_step}"
        return
    yield from _attention(shape, version)
    yield from _experts(shape)
    placed = list(_nodes(shape))
    yield from placed or _gpus(shape)
    if model is not None:
        yield from _model(shape, model, redundant)


def _attention(shape: Shape, version: Version) -> Iterator[Finding]:
    width = "attn_dp_size" if ATTENTION_WIDTH_HAS_A_FIELD.holds(version) else "dp_size"
    if shape.tp % shape.dp:
        yield "attn-dp-divides-tp", f"tp_size {shape.tp} is not divisible by {width} {shape.dp}"
    if shape.dp > 1 and shape.replicas > 1:
        yield "attn-dp-or-replicas", f"attention DP {shape.dp} together with {shape.replicas} replicas"
    if shape.cp > 1:
        yield "attn-cp-needs-release", f"attn_cp_size {shape.cp}"
        if shape.tp % (shape.dp * shape.cp):
            product = f"{width} {shape.dp} x attn_cp_size {shape.cp}"
            yield "attn-cp-divides-tp", f"tp_size {shape.tp} is not divisible by {product}"


def _experts(shape: Shape) -> Iterator[Finding]:
    ep = shape.ep_size
    if shape.tp % ep:
        yield "ep-divides-tp", f"tp_size {shape.tp} is not divisible by ep_size {ep}"
    if shape.moe_dp == 1:
        return
    yield "moe-dp-needs-release", f"moe_dp_size {shape.moe_dp}"
    if shape.tp % shape.moe_dp:
        yield "moe-dp-divides-tp", f"tp_size {shape.tp} is not divisible by moe_dp_size {shape.moe_dp}"
    if ep * shape.moe_dp > shape.tp or (ep > 1 and ep * shape.moe_dp != shape.tp):
        yield "moe-dp-with-ep", f"ep_size {ep} x moe_dp_size {shape.moe_dp} with tp_size {shape.tp}"
    if shape.pp > 1:
        yield "moe-dp-without-pp", f"moe_dp_size {shape.moe_dp} with pp_size {shape.pp}"
    if shape.cp != shape.moe_dp:
        yield "attn-cp-is-moe-dp", f"attn_cp_size {shape.cp} with moe_dp_size {shape.moe_dp}"


def _nodes(shape: Shape) -> Iterator[Finding]:
    nodes = shape.nodes
    if shape.replicas > 1 and nodes != 1:
        wanted = f"{shape.replicas} replicas of {shape.tp * shape.pp} GPUs on {nodes} nodes"
        yield "replicas-on-one-node", wanted
    elif (shape.tp * shape.pp) % nodes:
        yield "nodes-divide-gpus", f"tp_size {shape.tp} x pp_size {shape.pp} on {nodes} nodes"
    elif shape.pp % nodes and nodes % shape.pp:
        yield "pp-and-nodes", f"pp_size {shape.pp} on {nodes} nodes"


def _gpus(shape: Shape) -> Iterator[Finding]:
    """Only for a shape whose ranks divide evenly over its nodes (see `_nodes`)."""
    ids = [gpu_id(shape, replica, pp, tp) for replica in range(shape.replicas) for pp, tp in on_node(shape, 0)]
    if max(ids) >= shape.gpus_per_host:
        yield "gpus-per-host", f"a node needs GPU {max(ids)}, a host has 0 to {shape.gpus_per_host - 1}"
    if len(set(ids)) < len(ids):
        stages = f"{shape.stages_per_node} pipeline stages on one node"
        yield "gpu-ids-distinct", f"gpu_id_step {shape.gpu_id_step} with {stages} gives one GPU to two ranks"


def _model(shape: Shape, model: ModelShape, redundant: int) -> Iterator[Finding]:
    if shape.pp > model.layers:
        yield "layers-for-stages", f"{model.layers} layers over pp_size {shape.pp}"
    if shape.tp % (shape.dp * shape.cp):
        return
    attn_tp = shape.attn_tp_size
    if model.heads % attn_tp:
        yield "heads-divide", f"{model.heads} attention heads over attn_tp_size {attn_tp}"
    if not model.mla and model.kv_heads % attn_tp and attn_tp % model.kv_heads:
        yield "kv-heads-divide", f"{model.kv_heads} KV heads over attn_tp_size {attn_tp}"
    if not model.experts and model.intermediate % shape.tp:
        yield "intermediate-divides", f"intermediate_size {model.intermediate} over tp_size {shape.tp}"
    if (model.experts + redundant) % shape.ep_size:
        yield "experts-divide", f"{model.experts + redundant} experts over ep_size {shape.ep_size}"


def nearest(shape: Shape, works: Callable[[Shape], bool]) -> tuple[Shape, ...]:
    """Up to three shapes for which `works` is true, closest first: one size changed if that is enough, else two."""
    for changes in (1, 2):
        found: dict[Shape, float] = {}
        as_groups = shape._replace(dp=shape.dp * shape.replicas, replicas=1)
        if shape.replicas > 1 and works(as_groups):
            found[as_groups] = 0.0  # SGLang's own advice for replicas that do not fit one node: attention DP
        for axes in combinations(_axes(shape), changes):
            for candidate, cost in _neighbours(shape, axes):
                if candidate not in found and _uses_hosts_well(candidate, shape) and works(candidate):
                    found[candidate] = cost
        if found:
            ranked = sorted(found, key=lambda candidate: (found[candidate], candidate.gpus))
            return tuple(ranked[:SHOWN])
    return ()


def _axes(shape: Shape) -> tuple[str, ...]:
    """The dimensions worth varying: tp, and those the deployment already uses."""
    used = {name for name in AXES if getattr(shape, name) not in (None, 1)}
    return tuple(name for name in AXES if name in used or name == "tp")


def _neighbours(shape: Shape, axes: tuple[str, ...]) -> Iterator[tuple[Shape, float]]:
    """Every shape that differs on exactly these axes, with its distance; the last axis varies fastest."""
    first, rest = axes[0], axes[1:]
    value = getattr(shape, first)
    for other in sorted({*_sizes(max(1, value)), *_fitting(shape, first)}):
        if other == value:
            continue
        change: dict[str, Any] = {first: other}
        moved = shape._replace(**change)
        cost = COST.get(first, 1.0) * abs(log2(other / max(1, value)))
        if not rest:
            yield moved, cost
        else:
            for further, more in _neighbours(moved, rest):
                yield further, cost + more


def _sizes(value: int) -> list[int]:
    """Sizes near `value`: its neighbours and divisors, powers of two and multiples of eight up to twice as much."""
    top = min(2 * value, WIDEST)
    near = {value - 1, value + 1}
    powers = {1 << bit for bit in range(top.bit_length())}
    divisors = {part for part in range(1, min(value, WIDEST) + 1) if value % part == 0}
    return sorted(size for size in near | powers | divisors | set(range(8, top + 1, 8)) if 1 <= size <= max(top, 2))


def _fitting(shape: Shape, axis: str) -> Iterator[int]:
    """For tp, the nearest multiples of each size that must divide it; for such a size, the nearest divisors of tp."""
    tp = min(max(1, shape.tp), WIDEST)
    if axis == "tp":
        for part in (shape.dp, shape.ep, shape.cp, shape.moe_dp):
            if 1 < part <= WIDEST:
                yield from (size for size in (tp // part * part, (tp // part + 1) * part) if 0 < size <= WIDEST)
    elif axis in ("dp", "ep", "cp", "moe_dp"):
        value = getattr(shape, axis)
        divisors = [part for part in range(1, tp + 1) if tp % part == 0]
        yield from ([part for part in divisors if part <= value][-1:])
        yield from ([part for part in divisors if part > value][:1])


def _uses_hosts_well(candidate: Shape, shape: Shape) -> bool:
    """The same number of GPUs, or one that divides or fills hosts; an odd part of a host only if it was odd before."""
    gpus, host = candidate.gpus, candidate.gpus_per_host
    odd = host % max(1, shape.gpus) and shape.gpus % host
    return gpus == shape.gpus or host % gpus == 0 or gpus % host == 0 or bool(odd and gpus < host)
