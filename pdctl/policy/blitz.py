"""The policy `blitz`: BlitzScale's planner, which sizes both roles from backlog, KV memory and KV ingress.

Each bound gives a range of targets, as wide as its two ends are apart: inside the range nothing changes. Below it the
pool grows to the middle of the range at once, above it one replica leaves per decision.
docs/autoscale.md has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.json_records import span
from pdctl.policy.decision import Decision, DecisionTerm, say_rate, say_tokens, target_term
from pdctl.policy.observation import needed_rate
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.policy.observation import Observation, RolePool


@dataclass(frozen=True, slots=True)
class BlitzBounds:
    """The settings of `blitz`: the member `bounds` of an observation's file."""

    prefill: tuple[float, float] = span("seconds within which the backlog is to be computed", (0.5, 0.7), 3600)
    decode: tuple[float, float] = span("share of a decode's KV blocks in use", (0.75, 0.95), 1)
    migration: tuple[float, float] = span("share of a decode's KV ingress in use", (0.4, 0.8), 1)


class TargetRange(NamedTuple):
    """How many replicas one quantity needs; `amount`, `high` and `low` are its words and those of its two divisors.

    The divisors are "" where there is nothing to divide by.
    """

    name: str
    least: int
    most: int
    amount: str
    high: str
    low: str

    def terms(self) -> tuple[DecisionTerm, DecisionTerm]:
        return (
            DecisionTerm(f"{self.name}_at_least", self.least, self._because(self.high, self.least)),
            DecisionTerm(f"{self.name}_at_most", self.most, self._because(self.low, self.most)),
        )

    def _because(self, divisor: str, count: int) -> str:
        return f"{self.amount} / {divisor} = {count}" if divisor else self.amount


def propose_blitz(history: Sequence[Observation], bounds: BlitzBounds) -> Decision:
    """Raise UsageError if the prefill rate or the KV ingress rate is neither given nor measured."""
    now = history[-1]
    prefills, decodes = now.pools
    rate = needed_rate("blitz", now, "prefill_tokens_per_s")
    backlog = _range(
        "prefill_backlog",
        now.waiting_prompt_tokens,
        rate,
        bounds.prefill,
        f"backlog {say_tokens(now.waiting_prompt_tokens)}",
        "({bound:g} s × " + say_rate(rate) + ")",
    )
    memory = _range(
        "decode_memory",
        now.kv_blocks_used,
        now.kv_blocks_per_replica,
        bounds.decode,
        f"KV memory {now.kv_blocks_used:,} blocks",
        f"({{bound:g}} × {now.kv_blocks_per_replica:,} blocks)",
    )
    ingress = _ingress(now, bounds)
    prefill_delta, prefill_term = _step(prefills, backlog, ingress)
    decode_delta, decode_term = _step(decodes, memory, ingress)
    terms = (prefill_term, decode_term, *backlog.terms(), *memory.terms(), *ingress.terms())
    return Decision("blitz", prefill_delta, decode_delta, terms)


def _ingress(now: Observation, bounds: BlitzBounds) -> TargetRange:
    """The replicas that KV ingress needs: arrival rate by rate where it is measured, else the published form.

    The published form divides the KV cache that waits on prefills (tokens) by the ingress of all decodes (tokens per
    second) and takes the seconds for a number of replicas. Both roles are held to it: what one NIC takes in,
    another sends. Without decodes nothing is taken in, and the published form tells nothing.
    """
    arrival, rate = now.measured.kv_arrival_tokens_per_s, needed_rate("blitz", now, "kv_ingress_tokens_per_s")
    if arrival is not None:
        amount, divisor = f"KV arrival {say_rate(arrival)}", f"({{bound:g}} × {say_rate(rate)})"
        return _range("kv_ingress", arrival, rate, bounds.migration, amount, divisor)
    tokens = now.kv_blocks_used_on_prefill * now.block_tokens
    amount = f"KV waiting on prefills {say_tokens(tokens)}"
    if not now.decodes:
        return TargetRange("kv_ingress", 0, 0, f"{amount}, which no decode takes in", "", "")
    divisor = f"({{bound:g}} × {now.decodes} × {say_rate(rate)}, as published: no KV arrival rate is measured)"
    return _range("kv_ingress", tokens, max(1.0, now.decodes * rate), bounds.migration, amount, divisor)


def _range(
    name: str, amount: float, rate: float, bounds: tuple[float, float], amount_words: str, divisor_words: str
) -> TargetRange:
    # The order of the published code, amount / bound / rate in doubles, decides exact cases: 21000 / 0.7 / 15000 is
    # 2.0000000000000004, which rounds up to 3; 21000 / (0.7 × 15000) would be 2.
    low, high = bounds
    least, most = math.ceil(amount / high / rate), math.ceil(amount / low / rate)
    return TargetRange(
        name, least, most, amount_words, divisor_words.format(bound=high), divisor_words.format(bound=low)
    )


def _step(pool: RolePool, own: TargetRange, ingress: TargetRange) -> tuple[int, DecisionTerm]:
    """The change of a pool, and the term that decided it. An empty pool gets at least one replica."""
    count, least, most = pool.size, max(own.least, ingress.least), max(own.most, ingress.most)
    if least > count:
        decided = own if own.least == least else ingress
        target = (least + most + 1) // 2
        words = f"{decided.amount} / {decided.high} = {least} > {count}"
        words += f"; the middle of {least} to {most} is {target}" if target != least else ""
    elif most < count:
        decided = own if own.most == most else ingress
        target = max(1, count - 1)
        words = f"{decided.amount} / {decided.low} = {most} < {count}"
        words += "; the last one stays" if count == 1 else "; one less at a time" if most < target else ""
    else:
        target = max(1, count)
        words = f"{least} to {most} are enough for {own.amount} and {ingress.amount}; {count} stay"
    return target - count, target_term(pool, target, words if count or target > 1 else "there is none; one is needed")
