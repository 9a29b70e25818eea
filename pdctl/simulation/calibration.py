"""Measure what steps cost on a running deployment, and fit the coefficients of a cost profile to it.

Prefill steps are read from the engine's busy-time counters (`/v1/loads`, sglang 0.5.23), one prompt at a time; decode
steps from the gaps between streamed tokens of rooms that run together; what a request costs beside its steps from the
time to its first token. The deployment must be idle but for these requests.
"""

from __future__ import annotations

import random
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet import http_client, peer_json
from pdctl.fleet.request_timing import TimedAnswer, TimedRequest, send_open_loop
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPEATS = 5  # prompts of each length; their median counts
DECODE_TOKENS = 48  # tokens of each room of a decode measurement
SMALLEST_TOKEN = 8  # ids below are special in most vocabularies
IDLE = "send nothing else meanwhile, and try again"


class CalibrationTarget(NamedTuple):
    """A deployment behind one router. `prefills`: URLs of the engines whose counters are read."""

    router: str
    prefills: tuple[str, ...]
    decodes: int
    vocabulary: int  # token ids from SMALLEST_TOKEN up to this are sent
    context_tokens: int  # of the shortest of its engines
    decode_rooms: int  # that one decode runs at once
    key: str = ""
    answer_within_s: float = 120.0


class StepSample(NamedTuple):
    """One measured step: `rooms` of it, tokens computed (prefill) or tokens of KV cache of all rooms (decode)."""

    rooms: int
    tokens: float
    seconds: float


class Measurements(NamedTuple):
    prefill_steps: tuple[StepSample, ...]  # () if the engines count no busy time
    decode_steps: tuple[StepSample, ...]
    first_tokens: tuple[StepSample, ...]  # `seconds`: TTFT as a client sees it


class FittedCosts(NamedTuple):
    """The measured part of a cost profile, by the names of CostProfile, and how far the fit is from the samples.

    `error`: root mean square of (fitted − measured) / measured, for each of prefill, decode and ttft.
    """

    costs: dict[str, float]
    error: dict[str, float]


def measure(target: CalibrationTarget, seed: int, tell: Callable[[str], None]) -> Measurements:
    """Raise NotProbedError if the router or a counter cannot be read, PdctlError if an answer fails."""
    rng = random.Random(f"{seed}/calibration")
    prefill_steps, first_tokens = [], []
    _answers(target, [_request(rng, target, 16, 4) for _ in target.prefills for _ in range(2)])  # connections, caches
    for length in _lengths(target.context_tokens - 2):
        tell(f"prefill: {REPEATS} prompts of {length} tokens")
        steps, waits = [], []
        for _ in range(REPEATS):
            before = _prefill_counters(target)
            answer = _answers(target, [_request(rng, target, length, 1)])[0]
            after = _prefill_counters(target)
            waits.append(answer.token_s[0] - answer.sent_s)
            if before is not None and after is not None:
                tokens, seconds = after[0] - before[0], after[1] - before[1]
                if tokens != length:
                    raise PdctlError(
                        f"{target.router}: a prompt of {length} tokens was sent and {tokens} were computed", IDLE
                    )
                steps.append(seconds)
        if steps:
            prefill_steps.append(StepSample(1, length, median(steps)))
        first_tokens.append(StepSample(1, length, median(waits)))
    decode_steps = []
    for length in (16, _lengths(target.context_tokens - DECODE_TOKENS)[-1]):
        for rooms in _powers(target.decode_rooms):
            tell(f"decode: {rooms} rooms of {length} tokens")
            asked = [_request(rng, target, length, DECODE_TOKENS) for _ in range(rooms * target.decodes)]
            if (sample := _decode_sample(_answers(target, asked), rooms, length)) is not None:
                decode_steps.append(sample)
    return Measurements(tuple(prefill_steps), tuple(decode_steps), tuple(first_tokens))


def fit_costs(measured: Measurements, kv_bytes_per_token: int) -> FittedCosts:
    """Raise PdctlError if there are too few samples to tell the coefficients apart."""
    costs: dict[str, float] = {}
    error: dict[str, float] = {}
    rows: list[tuple[tuple[float, ...], float]]
    if measured.prefill_steps:
        rows = [((1.0, one.tokens, one.tokens**2), one.seconds) for one in measured.prefill_steps]
        found, error["prefill"] = fit_non_negative(rows)
        costs |= dict(zip(("prefill_step_s", "prefill_token_s", "prefill_square_s"), found, strict=True))
    rows = [((1.0, float(one.rooms), one.tokens), one.seconds) for one in measured.decode_steps]
    found, error["decode"] = fit_non_negative(rows)
    costs |= dict(zip(("decode_step_s", "decode_room_s", "decode_token_s"), found, strict=True))
    # What is left of TTFT after the prefill step: a constant for each request, and its bytes.
    steps = {one.tokens: one.seconds for one in measured.prefill_steps}
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


def _lengths(most: int) -> list[int]:
    """Prompt lengths from 16 up to the longest, each about twice the one before."""
    return [*(length for length in _powers(most) if 16 <= length < 0.75 * most), most]


def _powers(most: int) -> list[int]:
    return [1 << at for at in range(max(1, most).bit_length()) if 1 << at <= most]


def _request(rng: random.Random, target: CalibrationTarget, length: int, output_tokens: int) -> TimedRequest:
    """Random ids: no prompt begins as another one, so that no prefix cache helps."""
    span = target.vocabulary - SMALLEST_TOKEN
    ids = tuple(SMALLEST_TOKEN + int(rng.random() * span) for _ in range(length))
    return TimedRequest(0.0, ids, output_tokens)


def _answers(target: CalibrationTarget, requests: Sequence[TimedRequest]) -> tuple[TimedAnswer, ...]:
    answers = send_open_loop(target.router, requests, target.answer_within_s, target.key)
    for answer in answers:
        if answer.problem:
            raise PdctlError(f"{target.router}: {answer.problem}", "pdctl doctor, then try again")
    return answers


def _decode_sample(answers: Sequence[TimedAnswer], rooms: int, length: int) -> StepSample | None:
    """What a step takes while all rooms run; None if they never did for long enough to tell."""
    all_from = max(answer.token_s[1] for answer in answers)
    all_until = min(answer.token_s[-1] for answer in answers)
    each = []
    for answer in answers:
        within = [at for at in answer.token_s if all_from <= at <= all_until]
        if len(within) > DECODE_TOKENS // 4:
            each.append((within[-1] - within[0]) / (len(within) - 1))
    if len(each) < len(answers):
        return None
    return StepSample(rooms, rooms * (length + DECODE_TOKENS / 2), median(each))


def _prefill_counters(target: CalibrationTarget) -> tuple[int, float] | None:
    """Prompt tokens computed and seconds spent on them, summed over all prefills; None if one does not count them."""
    tokens, micros = 0, 0
    for url in target.prefills:
        answer = http_client.get(url.rstrip("/") + "/v1/loads", 5.0, key=target.key)
        if not answer.reached:
            raise NotProbedError(f"{url}/v1/loads: {answer.reason}", "pdctl status")
        for load in peer_json.mappings(peer_json.mapping(answer.json()).get("loads")):
            computed = peer_json.integer(load.get("total_prefill_uncached_tokens"))
            busy = peer_json.integer(load.get("total_prefill_busy_us"))
            if computed is None or busy is None:
                return None
            tokens, micros = tokens + computed, micros + busy
    return tokens, micros / 1e6
