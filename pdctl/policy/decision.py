"""What a policy decides: replicas more or fewer, the numbers that led there in words, what was refused, the cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.policy.observation import Observation, RolePool

SCHEMA = "pdctl.decision/1"


class DecisionTerm(NamedTuple):
    """One number of a decision, and the sentence with the arithmetic that gave it."""

    name: str
    value: float
    because: str


class RefusedAction(NamedTuple):
    """What the policy or the rule wanted, `prefill +2` for example, and why it is not done."""

    action: str
    because: str


class Decision(NamedTuple):
    """`terms`: first those that decided, one per role; then what they were chosen from."""

    policy: str
    prefill_delta: int
    decode_delta: int
    terms: tuple[DecisionTerm, ...]
    refused: tuple[RefusedAction, ...] = ()
    expected_cost: tuple[DecisionTerm, ...] = ()

    def document(self) -> dict[str, object]:
        """The decision as it stands in JSON."""
        told = self._asdict()
        lists = {name: [one._asdict() for one in rows] for name, rows in told.items() if isinstance(rows, tuple)}
        return {"schema": SCHEMA, **told, **lists}


def target_term(pool: RolePool, target: int, words: str) -> DecisionTerm:
    """The term that decided for a role."""
    return DecisionTerm(pool.role, target, f"{pool.letter}: {words}")


def estimate_cost(decision: Decision, now: Observation) -> tuple[DecisionTerm, ...]:
    """What carrying it out takes: replicas that start, drain or change their role, and seconds where they are known."""
    up = max(0, decision.prefill_delta) + max(0, decision.decode_delta)
    down = max(0, -decision.prefill_delta) + max(0, -decision.decode_delta)
    if not up and not down:
        return ()
    flips = min(up, down)
    parts = [
        f"{count} {word}"
        for count, word in ((flips, "change role"), (up - flips, "start"), (down - flips, "stop"))
        if count
    ]
    found = [DecisionTerm("replicas", up - down, ", ".join(parts))]
    startup = now.measured.startup_s
    if up > flips and startup is not None:
        found.append(DecisionTerm("start_s", startup, f"a replica serves {startup:g} s after its order"))
    rate, tokens = now.prefill_tokens_per_s, now.waiting_prompt_tokens
    if decision.prefill_delta < 0 and rate is not None:
        share = tokens / max(1, now.prefills)
        found.append(
            DecisionTerm(
                "drain_prefill_s",
                share / rate,
                f"its share of the backlog: {say_tokens(share)} / {say_rate(rate)} = {share / rate:.3g} s",
            )
        )
    length, step = now.measured.output_tokens, now.measured.itl_s
    if decision.decode_delta < 0 and length is not None and step is not None:
        whole = length * step
        found.append(
            DecisionTerm(
                "drain_decode_s", whole, f"a whole answer: {say_tokens(length)} × {step:.3g} s = {whole:.3g} s"
            )
        )
    return tuple(found)


def say_tokens(count: float) -> str:
    """`42 kTok`, to three digits."""
    for size, unit in ((1e12, "TTok"), (1e9, "GTok"), (1e6, "MTok"), (1e3, "kTok")):
        if count >= 0.9995 * size:  # what three digits round up to it
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} Tok"


def say_rate(rate: float) -> str:
    return f"{say_tokens(rate)}/s"
