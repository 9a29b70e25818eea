"""What of a proposal may be done: limits of the operator, and rules that keep a fleet serving while it changes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.json_records import number, whole, whole_span
from pdctl.policy.decision import DecisionTerm, RefusedAction, say_rate, say_tokens
from pdctl.policy.observation import MOST_REPLICAS
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import STATES, CountsAs, ReplicaState, Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.policy.decision import Decision
    from pdctl.policy.observation import Observation, RolePool

# A replica in one of these is being taken from its role: no other of that role is until it has left.
LEAVING = {
    ReplicaState.SHUTTING_PREFILL: "prefill",
    ReplicaState.MUTATING_TO_DECODE: "prefill",
    ReplicaState.SHUTTING_DECODE: "decode",
    ReplicaState.MUTATING_TO_PREFILL: "decode",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The member `limits` of an observation's file."""

    prefill: tuple[int, int] = whole_span("fewest and most prefills", (1, MOST_REPLICAS), 1, MOST_REPLICAS)
    decode: tuple[int, int] = whole_span("fewest and most decodes", (1, MOST_REPLICAS), 1, MOST_REPLICAS)
    gpus: int | None = whole("GPUs that prefills and decodes may have together", None, 1, 10**8)
    gpus_per_prefill: int = whole("GPUs of one prefill", 1, 1, 10**5)
    gpus_per_decode: int = whole("GPUs of one decode", 1, 1, 10**5)
    cooldown_up_s: float = number("seconds after a role's last change without one more", 0.0, 86400, above=False)
    cooldown_down_s: float = number("seconds after a role's last change without one less", 0.0, 86400, above=False)
    drain_s: float = number("a backlog that is computed within that is no reason for more", 1.0, 86400)
    highest_use: float = number("share of their capacity that the others may use after one has left", 0.8, 1)


class RoleLimits(NamedTuple):
    """What holds for one role. `gpus`: of one replica."""

    pool: RolePool
    bounds: tuple[int, int]
    gpus: int


class Situation(NamedTuple):
    """What the rules look at. `history` ends with `now`."""

    now: Observation
    limits: Limits
    history: Sequence[Observation]


def constrain(decision: Decision, now: Observation, limits: Limits, history: Sequence[Observation]) -> Decision:
    """The part of a decision that may be done now; `refused` gets the rest, each with its reason.

    `history` ends with `now`; it shows when a role last changed.
    """
    seen = Situation(now, limits, history)
    prefills, decodes = now.pools
    roles = (
        RoleLimits(prefills, limits.prefill, limits.gpus_per_prefill),
        RoleLimits(decodes, limits.decode, limits.gpus_per_decode),
    )
    terms, refused = list(decision.terms), list(decision.refused)
    steps = []
    for role, delta in zip(roles, (decision.prefill_delta, decision.decode_delta), strict=True):
        step, term = _within_bounds(role, delta, refused)
        if term is not None:
            terms.append(term)
        if step > 0 and role.pool.size >= role.bounds[0]:
            why = _too_early(role.pool, limits.cooldown_up_s, history) or _pending_is_enough(role.pool, seen)
            step = _refuse(role.pool, step, why, refused)
        if step < 0:
            step = _shrink(role, step, seen, refused)
        steps.append(step)
    if limits.gpus is not None:
        steps = _within_budget(steps, roles, limits.gpus, seen, terms, refused)
    return decision._replace(prefill_delta=steps[0], decode_delta=steps[1], terms=tuple(terms), refused=tuple(refused))


def _refuse(pool: RolePool, step: int, why: str, refused: list[RefusedAction]) -> int:
    """0, and the refusal in the list, if there is a reason; else the step."""
    if not why:
        return step
    refused.append(RefusedAction(f"{pool.role} {step:+d}", why))
    return 0


def _within_bounds(role: RoleLimits, delta: int, refused: list[RefusedAction]) -> tuple[int, DecisionTerm | None]:
    """The step that ends within the role's bounds, and a term if they ask for more than the policy did."""
    (least, most), pool = role.bounds, role.pool
    target = min(most, max(least, pool.size + delta))
    step = target - pool.size
    if step == delta:
        return step, None
    words = f"the limits of {pool.role} are {least:,} to {most:,}"
    if abs(step) < abs(delta):
        refused.append(RefusedAction(f"{pool.role} {delta:+d}", f"{words}: {step:+d}" if step else words))
        return step, None
    return step, DecisionTerm(f"{pool.role}_limits", target, f"{pool.letter}: {pool.size} are there, {words}")


def _too_early(pool: RolePool, cooldown: float, history: Sequence[Observation]) -> str:
    """Why the role may not change again yet; "" if it may."""
    now = history[-1].time_s
    for later, earlier in pairwise(history[::-1]):
        if later.time_s <= now - cooldown:
            break
        if _count(later, pool) != _count(earlier, pool):
            age = now - later.time_s
            return f"it changed {age:g} s ago, and the cooldown is {cooldown:g} s"
    return ""


def _count(one: Observation, pool: RolePool) -> int:
    return one.prefills if pool.role == CountsAs.PREFILL.value else one.decodes


def _pending_is_enough(pool: RolePool, seen: Situation) -> str:
    """Why the replicas that still load make one more unnecessary; "" if none loads, or if they are too few."""
    now, limits = seen.now, seen.limits
    if not pool.pending:
        return ""
    if pool.role == CountsAs.DECODE.value:
        use = now.kv_blocks_used / (now.kv_blocks_per_replica * pool.size)
        enough = use <= limits.highest_use
        return f"with {pool.pending} pending the KV use is {use:.3g} <= {limits.highest_use:g}" if enough else ""
    rate = now.prefill_tokens_per_s
    if rate is None:
        return f"{pool.pending} pending, and without a prefill rate nobody knows whether they are enough"
    seconds = now.waiting_prompt_tokens / (rate * pool.size)
    if seconds > limits.drain_s:
        return ""
    tokens = say_tokens(now.waiting_prompt_tokens)
    return (
        f"with {pool.pending} pending the backlog drains in time: {tokens} / ({pool.size} × {say_rate(rate)}) = "
        f"{seconds:.3g} s <= {limits.drain_s:g} s"
    )


def _shrink(role: RoleLimits, step: int, seen: Situation, refused: list[RefusedAction]) -> int:
    """-1, or 0 if none may leave now."""
    pool = role.pool
    if step < -1:
        refused.append(RefusedAction(f"{pool.role} {step:+d}", "one leaves at a time: -1"))
    return _refuse(pool, -1, _why_none_may_leave(role, seen), refused)


def _why_none_may_leave(role: RoleLimits, seen: Situation) -> str:
    """Why no replica of the role may leave now; "" if one may."""
    pool = role.pool
    if pool.size <= role.bounds[0]:
        return f"the limits of {pool.role} are {role.bounds[0]:,} to {role.bounds[1]:,}"
    leaving = [one.name for one in seen.now.replicas if LEAVING.get(one.state) == pool.role]
    if leaving:
        return f"{leaving[0]} is still leaving, and one leaves at a time"
    if pool.ready < 2:
        return f"it is the last ready {pool.role}" if pool.ready else f"no {pool.role} is ready"
    return _too_early(pool, seen.limits.cooldown_down_s, seen.history) or _overloaded_without_one(pool, seen)


def _overloaded_without_one(pool: RolePool, seen: Situation) -> str:
    """Why N-1 could not carry the load of the N ready ones, each N/(N-1) of its own now; "" if they could."""
    now, limits = seen.now, seen.limits
    rest = pool.ready - 1
    if pool.role == CountsAs.DECODE.value:
        use = now.kv_blocks_used / (now.kv_blocks_per_replica * rest)
        if use > limits.highest_use:
            return f"the KV use of {rest} would be {use:.3g} > {limits.highest_use:g}"
        return ""
    rate, traffic = now.prefill_tokens_per_s, now.measured
    if rate is None:
        return "the prefill rate is not known" if now.waiting_prompt_tokens else ""
    seconds = now.waiting_prompt_tokens / (rate * rest)
    if seconds > limits.drain_s:
        tokens = say_tokens(now.waiting_prompt_tokens)
        return f"{rest} would need {seconds:.3g} s > {limits.drain_s:g} s for the backlog of {tokens}"
    if traffic.requests_per_s is not None and traffic.prompt_tokens is not None:
        arriving = traffic.requests_per_s * traffic.prompt_tokens * (1 - traffic.cached_share)
        use = arriving / (rate * rest)
        if use > limits.highest_use:
            return f"arrivals of {say_rate(arriving)} would use {use:.3g} > {limits.highest_use:g} of {rest}"
    return ""


def _within_budget(
    steps: list[int],
    roles: tuple[RoleLimits, RoleLimits],
    gpus: int,
    seen: Situation,
    terms: list[DecisionTerm],
    refused: list[RefusedAction],
) -> list[int]:
    """The steps that the GPUs allow. Where none is free, a replica of the other role changes over, if it may leave."""
    held = sum(
        STATES[one.state].counts_as is CountsAs.NEITHER and STATES[one.state].weights is not Weights.NONE
        for one in seen.now.replicas
    ) * max(role.gpus for role in roles)
    present = held + sum(role.gpus * role.pool.size for role in roles)

    def needed(changed: Sequence[int]) -> int:
        return present + sum(role.gpus * step for role, step in zip(roles, changed, strict=True))

    if needed(steps) <= max(gpus, present):
        return steps
    words = f"{present} of {gpus} GPUs are in use"
    steps = list(steps)
    granted = [min(0, step) for step in steps]
    for at in (1, 0):  # what decodes lack keeps prefills from handing over
        other = 1 - at
        one_more = [step + (at == place) for place, step in enumerate(granted)]
        if steps[at] > 0 and steps[other] == 0 and needed(one_more) > gpus:
            why = _why_none_may_leave(roles[other], seen)
            action = f"{roles[other].pool.role} -1"
            if not why and roles[other].gpus < roles[at].gpus:
                why = f"one {roles[at].pool.role} needs {roles[at].gpus} GPUs, it frees {roles[other].gpus}"
            if why:
                refused.append(RefusedAction(action, why))
            else:
                steps[other] = granted[other] = -1
                letters = f"{roles[other].pool.letter}−1, {roles[at].pool.letter}+1"
                terms.append(DecisionTerm("gpu_budget", gpus, f"{words}: {letters}, one changes its role"))
    free = (max(gpus, present) if min(granted) < 0 else gpus) - needed(granted)
    granted = _share_out(free, steps, granted, [role.gpus for role in roles])
    for role, wanted, got in zip(roles, steps, granted, strict=True):
        if got < wanted:
            rest = f": {got:+d}" if got else ""
            refused.append(RefusedAction(f"{role.pool.role} {wanted:+d}", f"{words}{rest}"))
    return granted


def _share_out(free: int, wanted: Sequence[int], granted: Sequence[int], gpus: Sequence[int]) -> list[int]:
    """What each role gets where the free GPUs are given in turn, a decode first, to those that want more."""
    more = [max(0, want - got) for want, got in zip(wanted, granted, strict=True)]
    both = max(0, min(*more, free // sum(gpus)))
    free -= both * sum(gpus)
    decodes = max(0, min(more[1] - both, free // gpus[1]))
    prefills = max(0, min(more[0] - both, (free - decodes * gpus[1]) // gpus[0]))
    return [granted[0] + both + prefills, granted[1] + both + decodes]
