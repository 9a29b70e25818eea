"""The policies `dynamo-load` and `dynamo-throughput`, after the two modes of NVIDIA Dynamo's planner.

Both ask how long a prompt or a decode step takes, and keep what they estimate below the target of the service level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.json_records import number, whole
from pdctl.policy.decision import Decision, RefusedAction, say_rate, say_tokens, target_term
from pdctl.policy.observation import counter_gain, needed_rate, read_counters
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.policy.observation import Observation, RolePool


@dataclass(frozen=True, slots=True)
class DynamoLoadSettings:
    ttft_s: float = number("target: time to first token", 0.5, 3600)
    itl_s: float = number("target: inter-token latency", 0.05, 3600)
    prompt_tokens: float = number("prompt length, where it is not measured", 3000.0)
    margin: float = number("share of a target that one replica less may use", 0.8, 1)
    samples: int = whole("observations of decode steps to begin with", 5, least=2, most=10**6)


class StepTime(NamedTuple):
    """A decode step's seconds: `base` and `per_token` of the KV cache in its batch."""

    base: float
    per_token: float

    def at(self, tokens: float) -> float:
        return self.base + self.per_token * tokens

    def __str__(self) -> str:
        return f"{self.base:.3g} s + {self.per_token:.3g} s per token of KV cache"


def step_samples(history: Sequence[Observation]) -> list[tuple[float, float]]:
    """Tokens of KV cache on one decode and the seconds of its step there: one pair per observation that has both."""
    found, earlier = [], dict[str, tuple[int, float]]()
    for one in history:
        seconds = one.measured.itl_s
        if seconds is None:
            now = read_counters(one.pools[1].replicas, "decode_steps", "decode_busy_s")
            gain, earlier = counter_gain(earlier, now), now
            seconds = gain[1] / gain[0] if gain is not None and gain[0] else None
        if seconds and one.decodes:
            blocks = one.kv_blocks_used - one.kv_blocks_used_on_prefill
            found.append((blocks * one.block_tokens / one.decodes, seconds))
    return found


def fit_step_time(history: Sequence[Observation], least: int) -> StepTime | None:
    """The line through the observed steps by least squares, never falling; None for fewer than `least` of them."""
    samples = step_samples(history)
    if len(samples) < least:
        return None
    x = sum(tokens for tokens, _ in samples) / len(samples)
    y = sum(seconds for _, seconds in samples) / len(samples)
    spread = sum((tokens - x) ** 2 for tokens, _ in samples)
    slope = sum((tokens - x) * (seconds - y) for tokens, seconds in samples) / spread if spread else 0.0
    slope = min(max(0.0, slope), y / x if x else 0.0)  # no step takes less than nothing
    return StepTime(y - slope * x, slope)


def propose_dynamo_load(history: Sequence[Observation], settings: DynamoLoadSettings) -> Decision:
    """One replica more if every one of its role misses the target, one less if the others would still be well below."""
    now = history[-1]
    prefills, decodes = now.pools
    steps, terms, refused = [], [], []
    for pool, (step, words, refusal) in (
        (prefills, _prefill_step(now, prefills, settings)),
        (decodes, _decode_step(history, decodes, settings)),
    ):
        if step and pool.pending:
            refusal = RefusedAction(f"{pool.role} {step:+d}", f"a change is in progress: {pool.pending} still load")
            step = 0
        steps.append(step)
        terms.append(target_term(pool, pool.size + step, words))
        refused += [refusal] if refusal else []
    return Decision("dynamo-load", steps[0], steps[1], tuple(terms), tuple(refused))


def _prefill_step(
    now: Observation, pool: RolePool, settings: DynamoLoadSettings
) -> tuple[int, str, RefusedAction | None]:
    rate = needed_rate("dynamo-load", now, "prefill_tokens_per_s")
    length = (now.measured.prompt_tokens or settings.prompt_tokens) * (1 - now.measured.cached_share)
    own, queues = length / rate, [tokens / rate for tokens in pool.waiting_tokens]
    best = min(queues, default=math.inf) + own
    told = f"own prompt {say_tokens(length)} / {say_rate(rate)} = {own:.3g} s"
    if best > settings.ttft_s:
        if not queues:
            return 1, "there is none; one is needed", None
        return 1, f"the shortest queue gives a TTFT of {best:.3g} s > {settings.ttft_s:g} s ({told})", None
    words = f"the shortest queue gives a TTFT of {best:.3g} s <= {settings.ttft_s:g} s ({told})"
    if pool.size < 2:
        return 0, f"{words}; the last one stays", None
    longer, room = max(queues) * pool.size / (pool.size - 1), (settings.ttft_s - own) * settings.margin
    if longer < room:
        return -1, f"{words}; on {pool.size - 1} the queue would take {longer:.3g} s < {room:.3g} s", None
    why = f"on {pool.size - 1} the queue would take {longer:.3g} s, not less than {room:.3g} s"
    return 0, words, RefusedAction("prefill -1", why)


def _decode_step(
    history: Sequence[Observation], pool: RolePool, settings: DynamoLoadSettings
) -> tuple[int, str, RefusedAction | None]:
    now = history[-1]
    if not pool.size:
        return 1, "there is none; one is needed", None
    line = fit_step_time(history, settings.samples)
    if line is None:
        why = f"{settings.samples} observations with decode steps are needed, there are {len(step_samples(history))}"
        return 0, f"{pool.size} stay until the step time is known", RefusedAction("decode ±1", why)
    blocks = [float(one.kv_blocks_used) for one in pool.replicas] or [
        (now.kv_blocks_used - now.kv_blocks_used_on_prefill) / pool.size
    ]
    best = line.at(min(blocks) * now.block_tokens)
    words = f"the least loaded has a step of {best:.3g} s"
    if best > settings.itl_s:
        return 1, f"{words} > {settings.itl_s:g} s ({line})", None
    words = f"{words} <= {settings.itl_s:g} s ({line})"
    if pool.size < 2:
        return 0, f"{words}; the last one stays", None
    more = max(blocks) * pool.size / (pool.size - 1)
    longer, room = line.at(more * now.block_tokens), settings.itl_s * settings.margin
    if more <= now.kv_blocks_per_replica and longer < room:
        return -1, f"{words}; on {pool.size - 1} it would be {longer:.3g} s < {room:.3g} s", None
    why = f"on {pool.size - 1} a step would take {longer:.3g} s, not less than {room:.3g} s"
    if more > now.kv_blocks_per_replica:
        why = f"on {pool.size - 1} one would need {more:,.0f} KV blocks and has {now.kv_blocks_per_replica:,}"
    return 0, words, RefusedAction("decode -1", why)


@dataclass(frozen=True, slots=True)
class DynamoThroughputSettings:
    ttft_s: float = number("target: time to first token", 0.5, 3600)
    itl_s: float = number("target: inter-token latency", 0.05, 3600)
    window_s: float = number("seconds over which arrivals are averaged, which is the forecast", 180.0, 86400)
    prompt_tokens: float = number("prompt length, where it is not measured", 3000.0)
    output_tokens: float = number("answer length, where it is not measured", 150.0)
    samples: int = whole("observations of decode steps to begin with; before, memory alone counts", 5, least=2)


def propose_dynamo_throughput(history: Sequence[Observation], settings: DynamoThroughputSettings) -> Decision:
    """As many replicas as the forecast of arrivals needs, each at the rate at which it still meets its target."""
    now = history[-1]
    prefills, decodes = now.pools
    rates = [
        one.measured.requests_per_s
        for one in history
        if one.measured.requests_per_s is not None and now.time_s - one.time_s <= settings.window_s
    ]
    if not rates:
        raise UsageError(
            "the policy dynamo-throughput needs `measured.requests_per_s`, which is not given",
            'add it to the observation: "measured": {"requests_per_s": 4.5}',
        )
    arrivals = sum(rates) / len(rates)
    forecast = f"{arrivals:.3g} requests/s"
    rate = needed_rate("dynamo-throughput", now, "prefill_tokens_per_s")
    prompt = now.measured.prompt_tokens or settings.prompt_tokens
    output = now.measured.output_tokens or settings.output_tokens
    length = prompt * (1 - now.measured.cached_share)
    own = length / rate
    need_prefill = max(1, math.ceil(arrivals * length / rate))
    words = f"{forecast} × {say_tokens(length)} / {say_rate(rate)} = {need_prefill}"
    if own > settings.ttft_s:  # no number of replicas brings one prompt below the target
        need_prefill = max(need_prefill, math.ceil(own / settings.ttft_s))
        words = f"one prompt takes {own:.3g} s, more than {settings.ttft_s:g} s; {forecast} get {need_prefill}"
    line, memory = fit_step_time(history, settings.samples), now.kv_blocks_per_replica * now.block_tokens
    tokens = float(memory)
    if line is not None and line.per_token:
        tokens = min(tokens, max(0.0, (settings.itl_s - line.base) / line.per_token))
    context = prompt + output / 2
    batch = max(1.0, tokens / context)
    best = batch / (output * settings.itl_s)
    need_decode = max(1, math.ceil(arrivals / best))
    bound = "its KV memory" if tokens == memory else f"a step of {settings.itl_s:g} s"
    why = (
        f"{bound} holds {batch:.3g} rooms of {say_tokens(context)}, which is {best:.3g} requests/s; {forecast} need "
        f"{need_decode}"
    )
    return Decision(
        "dynamo-throughput",
        need_prefill - prefills.size,
        need_decode - decodes.size,
        (target_term(prefills, need_prefill, words), target_term(decodes, need_decode, why)),
    )
