"""Measure what steps cost on a running deployment, and fit the coefficients of a cost profile to it.

Prefill steps are read from the engine's busy-time counters (`/v1/loads`, sglang 0.5.23), one prompt at a time; decode
steps from the gaps between streamed tokens of rooms that run together; what a request costs beside its steps from the
time to its first token. The deployment must be idle but for these requests.
"""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING

from pdctl.errors import NotProbedError, PdctlError, UsageError
from pdctl.fleet import engine_probe, peer_json
from pdctl.fleet.load_probe import probe_loads
from pdctl.fleet.request_timing import TimedAnswer, TimedRequest, send_open_loop
from pdctl.json_records import SMALLEST, JsonPlace
from pdctl.layout import model_config
from pdctl.layout.cost_profile import read_costs
from pdctl.layout.gpu_memory import copy_bytes, kv_bytes_per_token, kv_itemsize
from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.cost_fit import IDLE, Measurements, PromptSample, StepSample, fit_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.fleet.observations import Endpoint
    from pdctl.layout.cost_profile import CostProfile

PATIENCE = 5.0  # seconds for an engine's answer
FEWEST_STEPS = 3  # kinds of decode steps, as there are three coefficients
SHORTEST = 128  # tokens of context with which there is something to measure
REPEATS = 5  # prompts of each length; their median counts
DECODE_TOKENS = 48  # tokens that each room generates beside the others
MOST_TOKENS = 512  # that it generates until all others have joined; if that is too few, the sample is left out
LONG_PROMPT = 512  # tokens of the longer ones of two kinds of rooms
FRESH_TOKENS = 16  # that a prompt begins with, random even where the seed is the same
FRESH = random.SystemRandom()
SMALLEST_TOKEN = 8  # ids below are special in most vocabularies


class CalibrationTarget(NamedTuple):
    """A deployment behind one router. `checkpoint`: where the model's config.json is."""

    router: str
    engines: tuple[Endpoint, ...]
    checkpoint: str
    key: str = ""
    answer_within_s: float = 120.0
    longest: int = 4096  # tokens of context that are measured at most
    most_rooms: int = 32  # of one decode

    def of_role(self, role: str) -> tuple[Endpoint, ...]:
        """Raise UsageError if there is none."""
        found = tuple(engine for engine in self.engines if engine.role == role)
        if not found:
            raise UsageError(f"{self.router} has no {role}", "calibrate on a deployment with prefills and decodes")
        return found


class EngineFacts(NamedTuple):
    """What an engine says of itself in /server_info."""

    context_tokens: int
    page_tokens: int
    pool_tokens: int
    running_rooms: int
    step_tokens: int
    gpus: int
    kv_dtype: str


class Calibrated(NamedTuple):
    """A measured profile. `measured`: the fields that were; the others are those of the profile it was begun from."""

    profile: CostProfile
    measured: tuple[str, ...]
    error: dict[str, float]


def calibrate(target: CalibrationTarget, base: CostProfile, seed: int, tell: Callable[[str], None]) -> Calibrated:
    """Raise NotProbedError if a server or a counter cannot be read, PdctlError if an answer fails."""
    prefill, decode = (_read_facts(target.of_role(role)[0], target) for role in ("prefill", "decode"))
    model = model_config.load(target.checkpoint)
    try:
        itemsize = kv_itemsize(decode.kv_dtype, model)
    except UsageError as error:  # no mistake of the user's: an engine says it
        raise NotProbedError(f"{target.of_role('decode')[0].url}: {error.message}", error.fix) from None
    sizes = {
        "layers": model.layers,
        "weight_bytes": copy_bytes(model),
        "kv_bytes_per_token": kv_bytes_per_token(model, 1, itemsize),
        "block_tokens": decode.page_tokens,
        "kv_blocks": decode.pool_tokens // decode.page_tokens,
        "prefill_batch_tokens": prefill.step_tokens,
        "prefill_batch_rooms": prefill.running_rooms,
        "decode_batch_rooms": decode.running_rooms,
        "gpus": decode.gpus,
    }
    _check_range(replace(base, **sizes), target)
    context = min(prefill.context_tokens, decode.context_tokens, target.longest)
    if context < SHORTEST:
        raise NotProbedError(
            f"{target.router}: its engines take {context} tokens of context, and {SHORTEST} are needed to measure",
            "calibrate on a deployment with a longer context",
        )
    driver = _Driver(target, model.vocab, context, random.Random(f"{seed}/calibration"))
    measured = _measure(driver, prefill.step_tokens, min(target.most_rooms, decode.running_rooms), tell)
    if len(measured.decode_steps) < FEWEST_STEPS:
        raise NotProbedError(
            f"{target.router}: the tokens of an answer come in one piece, not one after the other, so that no decode "
            "step can be measured",
            "reach the router without a proxy that holds answers back",
        )
    found = fit_costs(measured, sizes["kv_bytes_per_token"])
    costs = {name: max(value, SMALLEST) if name == "decode_step_s" else value for name, value in found.costs.items()}
    # The time of a hand-over that is not its bytes is part of request_s.
    profile = replace(base, **sizes, **costs, handover_s=0.0)  # type: ignore[arg-type]  # costs are of its float fields
    _check_range(profile, target)
    return Calibrated(profile, (*sizes, *costs, "handover_s"), found.error)


def _check_range(profile: CostProfile, target: CalibrationTarget) -> None:
    """Raise NotProbedError for a figure, told by an engine or measured, that no profile may have."""
    try:
        read_costs(asdict(profile), JsonPlace(f"what {target.router} was found to be"))
    except UsageError as error:
        raise NotProbedError(error.message, "pdctl doctor") from None


def write_profile(found: Calibrated, deployment: str) -> str:
    """The text of a profile's file: what was measured first, then what was not."""
    error = ", ".join(f"{name} {100 * value:.0f} %" for name, value in found.error.items())
    values = asdict(found.profile)
    lines = [
        f"# Measured by pdctl simulate calibrate on {deployment}.",
        f"# Root mean square of (fitted − measured) / measured: {error}.",
        *(f"{name}: {_number(values[name])}" for name in values if name in found.measured),
        "",
        "# Not measured: as in the profile it was begun from.",
        *(f"{name}: {_number(values[name])}" for name in values if name not in found.measured),
    ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _read_facts(endpoint: Endpoint, target: CalibrationTarget) -> EngineFacts:
    (engine,) = engine_probe.probe_engines([endpoint], PATIENCE, wanted=(), key=target.key)
    states = peer_json.mappings(engine.info.get("internal_states"))

    def whole(*names: str) -> int:
        told = (peer_json.integer(place.get(name)) for name in names for place in (engine.info, *states))
        return next((value for value in told if value is not None and value > 0), 0)

    pool = whole("max_total_num_tokens")
    if not pool:
        why = engine.reason or "/server_info does not say how large its KV pool is"
        raise NotProbedError(f"{endpoint.url}: {why}", "pdctl doctor")
    return EngineFacts(
        context_tokens=whole("context_length", "max_req_input_len") or pool,
        page_tokens=whole("page_size") or 1,
        pool_tokens=pool,
        running_rooms=whole("max_running_requests", "effective_max_running_requests_per_dp") or target.most_rooms,
        step_tokens=whole("chunked_prefill_size", "max_prefill_tokens") or pool,
        gpus=(whole("tp_size") or 1) * (whole("pp_size") or 1),
        kv_dtype=peer_json.excerpt(engine.text("kv_cache_dtype") or "auto"),
    )


def draw_prompt(count: int, vocabulary: int, rng: random.Random) -> tuple[int, ...]:
    """Token ids of `rng`, after a few that none chooses: no prompt begins as another, of an earlier calibration either.

    What was sent before with the same seed is in the prefix cache.
    """
    draws = (FRESH if at < FRESH_TOKENS else rng for at in range(count))
    return tuple(SMALLEST_TOKEN + int(draw.random() * (vocabulary - SMALLEST_TOKEN)) for draw in draws)


def miscounted(router: str, length: int, computed: int) -> PdctlError:
    """What to say if no prompt of `length` tokens was computed alone and whole."""
    what = f"{router}: prompts of {length} tokens were sent, and the prefills computed {computed} at a time"
    if computed > length:
        return PdctlError(what, IDLE)
    fix = "launch the prefills without a prefix cache (--disable-radix-cache), and try again"
    return PdctlError(f"{what}: the others were in the prefix cache", fix)


class _Driver:
    """Sends prompts of random ids: no prefix cache helps."""

    def __init__(self, target: CalibrationTarget, vocabulary: int, context_tokens: int, rng: random.Random) -> None:
        self.target, self.context_tokens = target, context_tokens
        self.prefills, self.decodes = target.of_role("prefill"), target.of_role("decode")
        self._vocabulary, self._rng = vocabulary, rng

    def ask(self, count: int, prompt_tokens: int, output_tokens: int) -> tuple[TimedAnswer, ...]:
        """Send `count` requests at once and wait for all of them. Raise PdctlError for the first that failed."""
        target = self.target
        requests = [
            TimedRequest(0.0, draw_prompt(prompt_tokens, self._vocabulary, self._rng), output_tokens)
            for _ in range(count)
        ]
        answers = send_open_loop(target.router, requests, target.answer_within_s, target.key)
        for answer in answers:
            if answer.problem:
                raise PdctlError(f"{target.router}: {answer.problem}", "pdctl doctor, then try again")
        return answers

    def prefill_counters(self) -> tuple[int, float] | None:
        """Prompt tokens computed and seconds spent on them, over all prefills; None if one does not count them.

        Raise NotProbedError if one does not answer.
        """
        tokens, micros = 0.0, 0.0
        for load in probe_loads(self.prefills, PATIENCE, metrics=False, patience=PATIENCE, key=self.target.key):
            if not load.heard:
                raise NotProbedError(f"{load.name} at {load.url}: {load.reason}", "pdctl status")
            if not {"prefilled_tokens", "prefill_busy_us"} <= load.figures.keys():
                return None
            tokens += load.figures["prefilled_tokens"]
            micros += load.figures["prefill_busy_us"]
        return int(tokens), micros / 1e6


def _measure(driver: _Driver, step_tokens: int, decode_rooms: int, tell: Callable[[str], None]) -> Measurements:
    prompts, first_tokens = [], []
    driver.ask(2 * len(driver.prefills), 16, 4)  # connections and caches
    for length in _lengths(driver.context_tokens - 2):
        tell(f"prefill: {REPEATS} prompts of {length} tokens")
        steps, waits, computed = [], [], 0
        for _ in range(REPEATS):
            before = driver.prefill_counters()
            (answer,) = driver.ask(1, length, 1)
            after = driver.prefill_counters()
            waits.append(answer.token_s[0] - answer.sent_s)
            if before is not None and after is not None:
                computed = after[0] - before[0]
                if computed == length:  # else a health request ran in the same step
                    steps.append(after[1] - before[1])
        if steps and median(steps) <= 0:
            what = f"the prefills' counter of busy time stood still while {length} tokens were computed"
            raise NotProbedError(f"{driver.target.router}: {what}", "pdctl doctor")
        if computed and not steps:
            raise miscounted(driver.target.router, length, computed)
        if steps:
            prompts.append(PromptSample.of(length, step_tokens, median(steps)))
        first_tokens.append(StepSample(1, length, median(waits)))
    decode_steps = _measure_decode(driver, decode_rooms, first_tokens, tell)
    return Measurements(tuple(prompts), decode_steps, tuple(first_tokens))


def _measure_decode(
    driver: _Driver, most_rooms: int, first_tokens: Sequence[StepSample], tell: Callable[[str], None]
) -> tuple[StepSample, ...]:
    """Rooms in powers of two, of short prompts and of long ones; each generates until the last of them has joined."""
    found: list[StepSample] = []
    most = min(LONG_PROMPT, driver.context_tokens // 2)  # the other half is for what is generated
    long = max((one for one in first_tokens if one.tokens <= most), key=lambda one: one.tokens)
    for prompt in (first_tokens[0], long):
        for rooms in _powers(most_rooms):
            asked = rooms * len(driver.decodes)
            step = max(SMALLEST, min((one.seconds for one in found), default=prompt.seconds / 4))
            joining = prompt.seconds * asked / len(driver.prefills) / step
            length = int(prompt.tokens)
            tokens = min(DECODE_TOKENS + int(1.5 * joining), MOST_TOKENS, driver.context_tokens - length - 1)
            tell(f"decode: {rooms} {'room' if rooms == 1 else 'rooms'} of {length} tokens, {tokens} tokens each")
            if (sample := _decode_sample(driver.ask(asked, length, tokens), rooms, length)) is not None:
                found.append(sample)
    return tuple(found)


def _decode_sample(answers: Sequence[TimedAnswer], rooms: int, length: int) -> StepSample | None:
    """What a step takes while all rooms run; None if they never did for long enough to tell."""
    all_from = max(answer.token_s[min(1, len(answer.token_s) - 1)] for answer in answers)
    all_until = min(answer.token_s[-1] for answer in answers)
    steps, lengths = [], []
    for answer in answers:
        within = [at for at in answer.token_s if all_from <= at <= all_until]
        if len(within) < DECODE_TOKENS // 4 or within[-1] <= within[0]:
            return None  # also where a proxy has held the tokens back and sent them at once
        steps.append((within[-1] - within[0]) / (len(within) - 1))
        lengths.append(length + answer.token_s.index(within[0]) + len(within) / 2)
    return StepSample(rooms, rooms * sum(lengths) / len(lengths), median(steps))


def _lengths(most: int) -> list[int]:
    """Prompt lengths from 16 up to the longest, each about twice the one before."""
    return [*(length for length in _powers(most) if 16 <= length < 0.75 * most), most]


def _powers(most: int) -> list[int]:
    return [1 << at for at in range(max(1, most).bit_length()) if 1 << at <= most]
