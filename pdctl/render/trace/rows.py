"""The steps of a room as rows: ranks of one instance that say the same in the same second share one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from pdctl.render.columns import spans
from pdctl.render.trace.measures import COARSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.trace.room import Step

LAST = 99
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """`step` is the first of the lines; `ranks` of all of them, in order."""

    step: Step
    ranks: tuple[str, ...]


def collapsed(steps: Iterable[Step]) -> list[Row]:
    """Lines join only within what their clock cannot tell apart, and each rank only once."""
    groups: list[list[Step]] = []
    same: dict[tuple[object, ...], list[Step]] = {}
    last: float | None = None
    for step in in_order(steps):
        if step.t != last:
            same, last = {}, step.t
        key = (step.instance, step.phase, step.row or NUMBER.sub("#", step.text))
        group = same.get(key)
        if group is not None and step.rank and step.rank not in {other.rank for other in group}:
            group.append(step)
        else:
            same[key] = group = [step]
            groups.append(group)
    return [Row(group[0], tuple(step.rank for step in group if step.rank)) for group in groups]


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Lines that one second holds, in the order of a room's life; those of one file stay as they are."""
    ordered: list[Step] = []
    for (_, doubt), second in groupby(steps, key=lambda step: (step.delta_s, step.uncertainty_s)):
        lines = list(second)
        ordered += _merged(lines) if doubt >= COARSE else lines
    return ordered


def _merged(steps: Iterable[Step]) -> Iterator[Step]:
    """Of the first lines that are left in each file, the one whose phase comes first; then the router's."""
    files: dict[str, list[Step]] = {}
    for step in steps:
        files.setdefault(step.file, []).append(step)
    while files:
        first = min(files, key=lambda file: (_order(files[file][0]), files[file][0].role != "router"))
        yield files[first].pop(0)
        if not files[first]:
            del files[first]


def _order(step: Step) -> int:
    """A line that proves no phase holds nothing up."""
    return step.phase.order if step.phase else LAST


def named(ranks: Sequence[str], times: str = "×") -> str:
    """`TP0-7 ×8`, `DP1 TP3`; several that differ in more than one number are only counted."""
    if len(ranks) < 2:
        return "".join(ranks)
    numbers = [NUMBER.findall(rank) for rank in ranks]
    shapes = {NUMBER.sub("#", rank) for rank in ranks}
    varying = [at for at, column in enumerate(zip(*numbers, strict=False)) if len(set(column)) > 1]
    if len(shapes) > 1 or len(varying) != 1:
        return f"{len(ranks)} ranks"
    run = spans([int(number[varying[0]]) for number in numbers])
    parts = iter(run if at == varying[0] else number for at, number in enumerate(numbers[0]))
    return NUMBER.sub(lambda _: next(parts), ranks[0]) + f" {times}{len(ranks)}"
