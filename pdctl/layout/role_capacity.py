"""The memory of a planned role, and what to change where it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.layout.feasibility import check
from pdctl.layout.gpu_memory import GpuMemory, MemoryVerdict, estimate, remedies
from pdctl.layout.instance_plan import Caution
from pdctl.layout.model_config import DTYPE_BYTES, load
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from pdctl.engines.versions import Version
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Placement, Shape, ShapeWords
    from pdctl.layout.workload import Budget, Demand

SHOWN = 3


class CapacityQuestion(NamedTuple):
    """One role's instance: what it holds, on what, for whom. `name` leads the messages."""

    name: str
    model: ModelShape
    shape: Shape
    placement: Placement
    budget: Budget
    demand: Demand
    version: Version


def read_model(path: str, dtype: str) -> ModelShape:
    """From a checkpoint directory or config.json; `dtype` other than `auto` replaces that of unquantised weights."""
    model = load(path)
    width = DTYPE_BYTES.get(dtype, model.dtype_bytes)
    return model._replace(dtype_bytes=width)


def judge(question: CapacityQuestion, words: ShapeWords) -> tuple[GpuMemory, tuple[Problem, ...], tuple[Caution, ...]]:
    """The memory, and a problem where it does not fit, or a warning where it is tight."""
    memory = estimate(question.model, question.shape, question.placement, question.budget, question.demand)
    told = f"{question.name}: {'; '.join(memory.reasons)}"
    if memory.verdict is MemoryVerdict.FAIL:
        return memory, (Problem("memory", told, tuple(_ways(question, words))),), ()
    if memory.verdict is MemoryVerdict.WARN:
        ways = _ways(question, words)
        fix = f"; {' or '.join(ways)} would do" if ways else ""
        return memory, (), (Caution("memory", told + fix),)
    return memory, (), ()


def _ways(question: CapacityQuestion, words: ShapeWords) -> list[str]:
    """The first remedies that fit and that SGLang accepts."""
    ways: list[str] = []
    redundant = question.placement.redundant_experts
    for remedy in remedies(question.model, question.shape, question.placement, question.budget, question.demand):
        if remedy.memory.verdict is not MemoryVerdict.OK:
            continue
        shape = remedy.shape
        if shape is not None and check(shape, question.version, question.model, redundant):
            continue
        ways.append(words.shape(shape) if shape is not None else words.setting(remedy.setting, remedy.value))
    return ways[:SHOWN]
