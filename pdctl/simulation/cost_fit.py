"""The coefficients of a cost profile that fit measured steps best, none of them below 0."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

IDLE = "send nothing else to the deployment meanwhile, and try again"


class StepSample(NamedTuple):
    """A measured time: of a decode step with so many rooms and tokens of KV cache, or of one prompt's first token."""

    rooms: int
    tokens: float
    seconds: float


class PromptSample(NamedTuple):
    """The measured passes of one prompt. `pairs`: Σ over its passes of tokens computed × tokens these attend to."""

    passes: int
    tokens: int
    pairs: int
    seconds: float

    @classmethod
    def of(cls, tokens: int, step_tokens: int, seconds: float) -> PromptSample:
        """A prompt that is computed `step_tokens` at a time."""
        ends = [min(tokens, begin + step_tokens) for begin in range(0, tokens, step_tokens)]
        pairs = sum((end - begin) * end for begin, end in zip((0, *ends), ends, strict=False))
        return cls(len(ends), tokens, pairs, seconds)


class Measurements(NamedTuple):
    prompts: tuple[PromptSample, ...]  # () if the engines count no busy time
    decode_steps: tuple[StepSample, ...]
    first_tokens: tuple[StepSample, ...]  # `seconds`: TTFT as a client sees it


class FittedCosts(NamedTuple):
    """The measured part of a cost profile, by the names of CostProfile, and how far the fit is from the samples.

    `error`: root mean square of (fitted − measured) / measured, for each of prefill, decode and ttft.
    """

    costs: dict[str, float]
    error: dict[str, float]


def fit_costs(measured: Measurements, kv_bytes_per_token: int) -> FittedCosts:
    """Raise PdctlError if there are too few samples to tell the coefficients apart."""
    costs: dict[str, float] = {}
    error: dict[str, float] = {}
    rows: list[tuple[tuple[float, ...], float]]
    if measured.prompts:
        rows = [((one.passes, one.tokens, one.pairs), one.seconds) for one in measured.prompts]
        found, error["prefill"] = fit_non_negative(rows)
        costs |= dict(zip(("prefill_step_s", "prefill_token_s", "prefill_square_s"), found, strict=True))
    rows = [((1.0, float(one.rooms), one.tokens), one.seconds) for one in measured.decode_steps]
    found, error["decode"] = fit_non_negative(rows)
    costs |= dict(zip(("decode_step_s", "decode_room_s", "decode_token_s"), found, strict=True))
    # What is left of TTFT after the passes: a constant for each request, and its bytes.
    steps = {float(one.tokens): one.seconds for one in measured.prompts}
    beside = [(one.tokens, one.seconds - steps.get(one.tokens, 0.0)) for one in measured.first_tokens]
    rows = [((1.0, tokens), max(left, 1e-6)) for tokens, left in beside]
    (constant, each_token), error["ttft"] = fit_non_negative(rows)
    costs["request_s"] = constant
    if each_token > 0:
        costs["nic_bytes_per_s"] = kv_bytes_per_token / each_token
    return FittedCosts(costs, error)


def fit_non_negative(rows: Sequence[tuple[Sequence[float], float]]) -> tuple[tuple[float, ...], float]:
    """Coefficients ≥ 0 with the least squares of relative errors, and the root of their mean.

    Each row: the factors, and the measured value (> 0). All subsets of coefficients are tried: there are a few at most.
    """
    width = len(rows[0][0]) if rows else 0
    if len(rows) < width or not rows:
        raise PdctlError(f"{len(rows)} measurements are too few for {width} coefficients", "measure more lengths")
    scale = [max(abs(factors[at]) for factors, _ in rows) or 1.0 for at in range(width)]
    relative = [[factor / scale[at] / value for at, factor in enumerate(factors)] for factors, value in rows]
    best: tuple[float, tuple[float, ...]] | None = None
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            solved = _least_squares([[row[at] for at in chosen] for row in relative])
            if solved is None or min(solved) < 0:
                continue
            whole = [0.0] * width
            for at, value in zip(chosen, solved, strict=True):
                whole[at] = value
            squares = sum((sum(f * w for f, w in zip(row, whole, strict=True)) - 1) ** 2 for row in relative)
            if best is None or squares < best[0]:
                best = squares, tuple(w / scale[at] for at, w in enumerate(whole))
    if best is None:
        raise PdctlError("the measurements fit no costs that are 0 or more", IDLE)
    return best[1], (best[0] / len(rows)) ** 0.5


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """x for the least squares of rows · x − 1, by the normal equations; None if they have no single solution."""
    width = len(rows[0])
    system = [
        [sum(row[i] * row[j] for row in rows) for j in range(width)] + [sum(row[i] for row in rows)]
        for i in range(width)
    ]
    for at in range(width):
        pivot = max(range(at, width), key=lambda i: abs(system[i][at]))
        if abs(system[pivot][at]) < 1e-12 * max(1e-300, *(abs(value) for value in system[pivot])):
            return None
        system[at], system[pivot] = system[pivot], system[at]
        for below in range(at + 1, width):
            ratio = system[below][at] / system[at][at]
            system[below] = [b - ratio * a for a, b in zip(system[at], system[below], strict=True)]
    solved = [0.0] * width
    for at in reversed(range(width)):
        known = sum(system[at][j] * solved[j] for j in range(at + 1, width))
        solved[at] = (system[at][width] - known) / system[at][at]
    return solved
