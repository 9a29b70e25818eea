"""Policies that look at queues and KV memory (`ratio`, `thresholds`, `wva`, `kpa`), at nothing, or at what comes.

docs/autoscale.md says where each comes from, and where ours differs.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.json_records import number, whole
from pdctl.policy.decision import Decision, DecisionTerm, say_rate, say_tokens, target_term
from pdctl.policy.observation import MOST_REPLICAS, needed_rate
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.policy.observation import Observation, RolePool


@dataclass(frozen=True, slots=True)
class StaticSettings:
    prefills: int = whole("prefills to have; 0: as many as there are", 0, most=MOST_REPLICAS)
    decodes: int = whole("decodes to have; 0: as many as there are", 0, most=MOST_REPLICAS)


def propose_static(history: Sequence[Observation], settings: StaticSettings) -> Decision:
    pools = history[-1].pools
    targets = [wanted or pool.size for pool, wanted in zip(pools, (settings.prefills, settings.decodes), strict=True)]
    words = ["as set" if wanted else "as many as there are" for wanted in (settings.prefills, settings.decodes)]
    return _decision("static", pools, targets, words)


@dataclass(frozen=True, slots=True)
class RatioSettings:
    drain_s: float = number("seconds within which the backlog is to be computed", 0.7, 3600)
    kv_use: float = number("share of a decode's KV blocks in use", 0.85, 1)


def propose_ratio(history: Sequence[Observation], settings: RatioSettings) -> Decision:
    """As many replicas as there are, shared out by what each role needs; at most one changes its role at a time."""
    now = history[-1]
    pools = now.pools
    total = now.prefills + now.decodes
    rate = needed_rate("ratio", now, "prefill_tokens_per_s")
    backlog = now.waiting_prompt_tokens / rate / settings.drain_s
    memory = now.kv_blocks_used / now.kv_blocks_per_replica / settings.kv_use
    if total < 2 or not backlog + memory:
        why = "nothing waits and no KV block is used" if total > 1 else f"{total} replica is too few to share out"
        return _decision("ratio", pools, [now.prefills, now.decodes], [why, why])
    share = backlog / (backlog + memory)
    best = min(total - 1, max(1, math.floor(total * share + 0.5)))
    prefills = now.prefills + max(-1, min(1, best - now.prefills))
    needs = (
        f"{backlog:.3g} prefills for backlog {say_tokens(now.waiting_prompt_tokens)} / ({settings.drain_s:g} s × "
        f"{say_rate(rate)}), {memory:.3g} decodes for {now.kv_blocks_used:,} KV blocks / ({settings.kv_use:g} × "
        f"{now.kv_blocks_per_replica:,})"
    )
    words = [f"{needs}: {best} of {total}", f"{needs}: {total - best} of {total}"]
    return _decision("ratio", pools, [prefills, total - prefills], words)


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    """The prefill's two are those of Dynamo's throughput preset; a KV use above 1 cannot be observed, so 0.95."""

    context_tokens: int = whole("context length, the unit of the two thresholds of the queue", 8192, least=1)
    queue_up: float = number("one prefill more if any has that many contexts waiting", 1.0, above=False)
    queue_down: float = number("one prefill less if all have fewer contexts waiting", 0.1, above=False)
    kv_up: float = number("one decode more if any uses that share of its KV blocks", 0.95, 1)
    kv_down: float = number("one decode less if all use a smaller share", 0.6, 1, above=False)


def propose_thresholds(history: Sequence[Observation], settings: ThresholdSettings) -> Decision:
    now = history[-1]
    prefills, decodes = now.pools
    queues = [tokens / settings.context_tokens for tokens in prefills.waiting_tokens]
    rows = (
        (prefills, queues, settings.queue_up, settings.queue_down, "the longest queue is {:.3g} contexts"),
        (decodes, decodes.kv_uses, settings.kv_up, settings.kv_down, "the highest KV use is {:.3g}"),
    )
    targets, words = [], []
    for pool, loads, up, down, form in rows:
        highest = max(loads, default=math.inf)
        step = 1 if highest >= up else -1 if highest < down and pool.size > 1 else 0
        sign = f">= {up:g}" if highest >= up else f"< {down:g}" if highest < down else f"between {down:g} and {up:g}"
        targets.append(pool.size + step)
        words.append(f"{form.format(highest)}, {sign}" if loads else "there is none; one is needed")
    return _decision("thresholds", (prefills, decodes), targets, words)


@dataclass(frozen=True, slots=True)
class WvaSettings:
    """llm-d's defaults, but for the prompt length."""

    kv_saturated: float = number("a replica is saturated from this KV use", 0.8, 1)
    queue_saturated: float = number("or from that many rooms in its queue", 5.0)
    kv_spare: float = number("spare KV use a replica has on average, or one more is needed", 0.1, 1)
    queue_spare: float = number("spare rooms it has on average, or one more is needed", 3.0)
    window_s: float = number("seconds whose peak counts", 60.0, 86400)
    prompt_tokens: float = number("a room's prompt, where its length is not measured", 3000.0)


class Saturation(NamedTuple):
    """Of a pool in one observation: the sums over its replicas, and what they have to spare on average."""

    kv: float
    queue: float
    spare_kv: float
    spare_queue: float


def propose_wva(history: Sequence[Observation], settings: WvaSettings) -> Decision:
    """One step a time; up if too little is to spare, down if enough is still to spare on one replica less.

    Ours: a saturated replica counts as one with nothing to spare. llm-d leaves it out of the mean, so that more
    load can look like more room.
    """
    now = history[-1]
    recent = [one for one in history if now.time_s - one.time_s <= settings.window_s]
    targets, words = [], []
    for at, pool in enumerate(now.pools):
        found = [_saturation(one, one.pools[at], settings) for one in recent]
        kv, queue = max(one.kv for one in found), max(one.queue for one in found)
        spare_kv, spare_queue = min(one.spare_kv for one in found), min(one.spare_queue for one in found)
        rest = max(1, pool.size - 1)
        kv_left, queue_left = settings.kv_saturated - kv / rest, settings.queue_saturated - queue / rest
        step, why = 0, "enough to spare"
        if spare_kv < settings.kv_spare or spare_queue < settings.queue_spare:
            step, why = 1, f"less than {settings.kv_spare:g} or {settings.queue_spare:g}"
        elif pool.size > 1 and kv_left >= settings.kv_spare and queue_left >= settings.queue_spare:
            step, why = -1, f"on {rest} there would still be {kv_left:.3g} and {queue_left:.3g}"
        targets.append(pool.size + step)
        words.append(f"KV use {spare_kv:.3g} and {spare_queue:.3g} rooms to spare on average; {why}")
    return _decision("wva", now.pools, targets, words)


def _saturation(now: Observation, pool: RolePool, settings: WvaSettings) -> Saturation:
    if not pool.size:
        return Saturation(0.0, 0.0, 0.0, 0.0)
    length = now.measured.prompt_tokens or settings.prompt_tokens
    queues: list[float] = [tokens / length for tokens in pool.waiting_tokens]
    if pool.role == "decode":
        queues = [one.queues.prealloc + one.queues.transfer for one in pool.replicas] or [0.0]
    most_kv, most_queue, spare_kv, spare_queue = settings.kv_saturated, settings.queue_saturated, 0.0, 0.0
    for use, queue in zip(pool.kv_uses, queues, strict=True):
        if use < most_kv and queue < most_queue:
            spare_kv += most_kv - use
            spare_queue += most_queue - queue
    each = pool.size / len(queues)  # where only the number is known, one value stands for all
    return Saturation(sum(pool.kv_uses) * each, sum(queues) * each, spare_kv / len(queues), spare_queue / len(queues))


@dataclass(frozen=True, slots=True)
class KpaSettings:
    """Knative's windows and panic threshold; the two loads are ours: Knative counts requests in flight."""

    drain_s: float = number("a prefill's load: the backlog it computes within that many seconds", 0.7, 3600)
    kv_use: float = number("a decode's load: the share of its KV blocks in use", 0.7, 1)
    stable_window_s: float = number("seconds over which the load is averaged", 60.0, 86400)
    panic_window_s: float = number("seconds over which it is averaged to see a burst", 6.0, 86400)
    panic_threshold: float = number("a burst needs that many times the replicas there are", 2.0)


def propose_kpa(history: Sequence[Observation], settings: KpaSettings) -> Decision:
    """As many replicas as the averaged load needs; during a burst and one stable window after it none is taken away."""
    now = history[-1]
    rate = needed_rate("kpa", now, "prefill_tokens_per_s")
    amounts: tuple[Callable[[Observation], int], ...] = (
        lambda one: one.waiting_prompt_tokens,
        lambda one: one.kv_blocks_used,
    )
    loads = (rate * settings.drain_s, now.kv_blocks_per_replica * settings.kv_use)
    targets, words = [], []
    for pool, amount, load in zip(now.pools, amounts, loads, strict=True):
        prefill = pool.role == "prefill"
        samples = [
            LoadSample(one.time_s, amount(one), (one.prefills if prefill else one.decodes) or 1) for one in history
        ]
        recent = [one.amount for one in samples if now.time_s - one.time_s < settings.stable_window_s]
        average = sum(recent) / len(recent) / load
        bursts = _panics(samples, load, settings)
        peak = max((need for at_s, need in bursts if now.time_s - at_s < settings.stable_window_s), default=0)
        need = max(1, math.ceil(average))
        targets.append(max(need, pool.size, peak) if peak else need)
        what = f"a load of {average:.3g} replicas over {settings.stable_window_s:g} s"
        burst = f"; panic: {peak} needed over {settings.panic_window_s:g} s, none is taken away" if peak else ""
        words.append(f"{what} needs {need}{burst}")
    return _decision("kpa", now.pools, targets, words)


class LoadSample(NamedTuple):
    """`amount`: tokens or blocks, whole so that the sum of a window stays exact; `replicas`: how many there were."""

    time_s: float
    amount: int
    replicas: int


def _panics(samples: Sequence[LoadSample], load: float, settings: KpaSettings) -> list[tuple[float, int]]:
    """When the panic window's mean needed a multiple of the replicas there were, and how many it needed."""
    found, window, total = [], deque[LoadSample](), 0
    for one in samples:
        window.append(one)
        total += one.amount
        while one.time_s - window[0].time_s >= settings.panic_window_s:
            total -= window.popleft().amount
        need = math.ceil(total / len(window) / load)
        if need >= settings.panic_threshold * one.replicas:
            found.append((one.time_s, need))
    return found


@dataclass(frozen=True, slots=True)
class OracleSettings:
    horizon_s: float = number("seconds of the future it looks at", 60.0, 86400)
    drain_s: float = number("seconds within which a prompt is to be computed", 0.7, 3600)
    kv_use: float = number("share of a decode's KV blocks in use", 0.95, 1)
    itl_s: float = number("seconds per decode step, where they are not measured", 0.05, 3600)


def propose_oracle(history: Sequence[Observation], settings: OracleSettings) -> Decision:
    """The fewest replicas with which all that comes is computed in time and has room; starting takes no time."""
    now = history[-1]
    rate = needed_rate("oracle", now, "prefill_tokens_per_s")
    ahead = sorted((one for one in now.arrivals_ahead if one.in_s <= settings.horizon_s), key=lambda one: one.in_s)
    tokens, prefills, when = now.waiting_prompt_tokens, now.waiting_prompt_tokens / rate / settings.drain_s, 0.0
    for one in ahead:
        tokens += one.prompt_tokens
        need = tokens / rate / (one.in_s + settings.drain_s)
        if need > prefills:
            prefills, when = need, one.in_s
    step = now.measured.itl_s or settings.itl_s
    changes = []  # (when, blocks) of arrivals, and of their ends; what is used now stays
    for one in ahead:
        blocks = math.ceil((one.prompt_tokens + one.output_tokens) / now.block_tokens)
        changes += [(one.in_s, 1, blocks), (one.in_s + one.output_tokens * step, 0, -blocks)]
    used = peak = now.kv_blocks_used
    for _, _, blocks in sorted(changes):  # at the same moment what ends goes first
        used += blocks
        peak = max(peak, used)
    decodes = peak / now.kv_blocks_per_replica / settings.kv_use
    words = [
        f"{len(ahead)} requests come within {settings.horizon_s:g} s; the most is due {when:.3g} s from now and needs "
        f"{prefills:.3g} at {say_rate(rate)}",
        f"at most {peak:,} KV blocks will be in use, which need {decodes:.3g} at {settings.kv_use:g} × "
        f"{now.kv_blocks_per_replica:,}",
    ]
    return _decision("oracle", now.pools, [max(1, math.ceil(prefills)), max(1, math.ceil(decodes))], words)


def _decision(policy: str, pools: Sequence[RolePool], targets: Sequence[int], words: Sequence[str]) -> Decision:
    terms: list[DecisionTerm] = []
    for pool, target, why in zip(pools, targets, words, strict=True):
        change = f"{pool.size} stay" if target == pool.size else f"{pool.size} become {target}"
        terms.append(target_term(pool, target, f"{why}: {change}"))
    deltas = [target - pool.size for pool, target in zip(pools, targets, strict=True)]
    return Decision(policy, deltas[0], deltas[1], tuple(terms))
