"""The closest shapes that work, for a shape that does not."""

from __future__ import annotations

from itertools import combinations
from math import log2
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.layout.shape import Shape

AXES = ("dp", "ep", "cp", "moe_dp", "replicas", "pp", "tp", "nnodes")
COST = {"tp": 2.0, "pp": 2.0, "replicas": 2.0, "nnodes": 1.5}  # axes that change the number of GPUs or hosts weigh more
SHOWN = 3
WIDEST = 256  # no axis is tried further than this


def nearest(shape: Shape, works: Callable[[Shape], bool]) -> tuple[Shape, ...]:
    """Up to three shapes that `works`, closest first: one size changed where that is enough, else two."""
    for changes in (1, 2):
        found: dict[Shape, float] = {}
        as_groups = shape._replace(dp=shape.dp * shape.replicas, replicas=1)
        if shape.replicas > 1 and works(as_groups):
            found[as_groups] = 0.0  # SGLang's own advice for replicas that do not fit one node: attention DP
        for axes in combinations(_axes(shape), changes):
            for candidate, cost in _moved(shape, axes):
                if candidate not in found and _uses_hosts_well(candidate, shape) and works(candidate):
                    found[candidate] = cost
        if found:
            ranked = sorted(found, key=lambda candidate: (found[candidate], candidate.gpus))
            return tuple(ranked[:SHOWN])
    return ()


def _axes(shape: Shape) -> tuple[str, ...]:
    """A deployment that does not use a dimension is not offered it, nor another number of nodes than it needs."""
    used = {name for name in AXES if getattr(shape, name) not in (None, 1)}
    return tuple(name for name in AXES if name in used or name == "tp")


def _moved(shape: Shape, axes: tuple[str, ...]) -> Iterator[tuple[Shape, float]]:
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
            for further, more in _moved(moved, rest):
                yield further, cost + more


def _sizes(value: int) -> list[int]:
    """Sizes near `value`: its neighbours and divisors, powers of two and multiples of eight up to twice as much."""
    top = min(2 * value, WIDEST)
    near = {value - 1, value + 1}
    powers = {1 << bit for bit in range(top.bit_length())}
    divisors = {part for part in range(1, min(value, WIDEST) + 1) if value % part == 0}
    return sorted(size for size in near | powers | divisors | set(range(8, top + 1, 8)) if 1 <= size <= max(top, 2))


def _fitting(shape: Shape, axis: str) -> Iterator[int]:
    """Of tp the multiples around it of what must divide it; of those the divisors of tp around them."""
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
    """As many GPUs as before, or a number that divides a host or fills hosts; part of one where it was that before."""
    gpus, host = candidate.gpus, candidate.gpus_per_host
    odd = host % max(1, shape.gpus) and shape.gpus % host
    return gpus == shape.gpus or host % gpus == 0 or gpus % host == 0 or bool(odd and gpus < host)
