"""What changes the roles of a fleet: the steps and result of a role switch, the decision of a scaling policy."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from pdctl.json_records import figures
from pdctl.policy import POLICIES
from pdctl.policy.decision import say_rate, say_tokens
from pdctl.render.term import as_json, visible
from pdctl.switch import switch_order
from pdctl.switch.switch_order import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.autoscale.advice import Advice
    from pdctl.policy.decision import Decision
    from pdctl.policy.observation import Observation
    from pdctl.render.term import Term
    from pdctl.switch.switch_order import Result, StepNote, SwitchOrder
    from pdctl.switch.switch_refusals import SwitchRefusal


def note(one: StepNote, term: Term) -> None:
    """Write `  drain    idle (2.1 s)`; a step still in progress has no time."""
    took = f" ({one.seconds:.1f} s)" if one.seconds is not None else " …"
    term.write(f"  {one.step.value:<8} {visible(one.words, term)}{took}")


def head(order: SwitchOrder, role: str, term: Term) -> None:
    where = "" if order.name == order.url else f" ({order.url})"
    words = f"a {role} already" if role == order.to else f"{role} -> {order.to}"
    term.write(f"{order.name}{where}: {words}")


def plan(order: SwitchOrder, role: str, notes: Iterable[StepNote], term: Term) -> None:
    head(order, role, term)
    for one in notes:
        term.write(f"  {one.step.value:<8} {visible(one.words, term)}")


def refused(order: SwitchOrder, found: Iterable[SwitchRefusal], term: Term) -> None:
    term.write(term.style(f"{order.name} cannot become a {order.to} now; nothing was changed", "red"))
    for one in found:
        term.write(f"  {visible(one.reason, term)}")
        if one.fix:
            term.write(f"    fix: {visible(one.fix, term)}")


def result(one: Result, term: Term) -> None:
    whole = sum(seconds for _, seconds in one.durations)
    if one.standing is Standing.SWITCHED:
        term.write(f"{one.name} is a {one.new_role} now, after {whole:.1f} s")
        return
    state = f"{one.name} serves as a {one.old_role} as before" if one.standing is Standing.AS_BEFORE else ""
    term.write(term.style(visible(f"{one.problem}{'; ' + state if state else ''}", term), "red"))
    if one.fix:
        term.write(f"  fix: {visible(one.fix, term)}")


def result_json(order: SwitchOrder, one: Result) -> str:
    return json.dumps(switch_order.document(order, one), indent=2)


def refused_json(order: SwitchOrder, found: Iterable[SwitchRefusal]) -> str:
    rows = [{"reason": one.reason, "fix": one.fix} for one in found]
    body = {"schema": switch_order.SCHEMA, "instance": order.name, "url": order.url, "to": order.to, "refused": rows}
    return json.dumps(body, indent=2)


def plan_json(order: SwitchOrder, role: str, notes: Iterable[StepNote]) -> str:
    rows = [{"step": one.step.value, "words": one.words} for one in notes]
    body = {"schema": switch_order.SCHEMA, "instance": order.name, "url": order.url, "from": role, "to": order.to}
    return json.dumps({**body, "steps": rows}, indent=2)


def decision(one: Decision, now: Observation, term: Term) -> None:
    """Write the change, the terms that led to it, what was refused and what it costs."""
    term.write(term.style(f"{one.policy}: {_change(one, now)}", "bold"))
    width = max((len(each.name) for each in one.terms + one.expected_cost), default=0)
    for each in one.terms:
        term.write(f"  {each.name:<{width}}  {each.value:>4g}  {visible(each.because, term)}")
    for no in one.refused:
        term.write(term.style(f"  refused {no.action}: {visible(no.because, term)}", "yellow"))
    for each in one.expected_cost:
        term.write(term.style(f"  cost {each.name} {each.value:.3g}: {visible(each.because, term)}", "dim"))


def _change(one: Decision, now: Observation) -> str:
    changes = (("prefill", now.prefills, one.prefill_delta), ("decode", now.decodes, one.decode_delta))
    told = [f"{role} {size} -> {size + step} ({step:+d})" if step else f"{role} {size}" for role, size, step in changes]
    return ", ".join(told)


def advice(one: Advice, verbose: bool, term: Term) -> None:
    """Write the fleet in a line, what could not be read, and what each policy would do, by which numbers."""
    now = one.look.observation
    term.write(
        f"{visible(one.look.at, term)}  {visible(_fleet(now), term) if now is not None else 'nothing was observed'}"
    )
    for note in one.look.notes:
        term.write(term.style(f"  {visible(note, term)}", "yellow"))
    for made in one.decisions:
        if now is None:
            break
        if verbose:
            decision(made, now, term)
            continue
        changes = bool(made.prefill_delta or made.decode_delta)
        term.write(term.style(f"  {made.policy}: {_change(made, now)}", *(("bold",) if changes else ())))
        for each in made.terms[:2]:
            term.write(f"    {visible(each.because, term)}")
        for no in made.refused:
            term.write(term.style(f"    refused {no.action}: {visible(no.because, term)}", "yellow"))
    for policy, why in one.undecided.items():
        term.write(term.style(f"  {policy}: undecided: {visible(why, term)}", "dim"))


def _fleet(now: Observation) -> str:
    """`2 prefills, 1 decode; backlog 42 kTok; KV blocks 120 on prefills, 900 on decodes, of 3,072 each; …`"""
    on_decode = now.kv_blocks_used - now.kv_blocks_used_on_prefill
    roles = [_counted(pool.size, pool.role, pool.ready) for pool in now.pools]
    told = [
        ", ".join(roles),
        f"backlog {say_tokens(now.waiting_prompt_tokens)}",
        f"KV blocks {now.kv_blocks_used_on_prefill:,} on prefills, {on_decode:,} on decodes, "
        f"of {now.kv_blocks_per_replica:,} each",
    ]
    if now.measured.requests_per_s is not None:
        told.append(f"{now.measured.requests_per_s:.3g} requests/s")
    if now.prefill_tokens_per_s is not None:
        told.append(f"a prefill computes {say_rate(now.prefill_tokens_per_s)}")
    return "; ".join(told)


def _counted(size: int, role: str, ready: int) -> str:
    short = "" if ready == size else f" ({ready} ready)"
    return f"{size} {role}{'' if size == 1 else 's'}{short}"


def policies(term: Term) -> None:
    for name, policy in POLICIES.items():
        term.write(f"{term.style(name.value, 'bold')}: {policy.meaning}")
        for setting, default, meaning in _settings(policy.settings):
            term.write(f"  {setting} = {json.dumps(default)}: {meaning}")


def policies_json() -> str:
    rows = [
        {
            "name": name.value,
            "meaning": policy.meaning,
            "settings": [
                {"name": setting, "default": default, "meaning": meaning}
                for setting, default, meaning in _settings(policy.settings)
            ],
        }
        for name, policy in POLICIES.items()
    ]
    return as_json({"schema": "pdctl.policies/1", "policies": rows})


def _settings(of: type) -> list[tuple[str, object, str]]:
    """Name, default and meaning of each setting of a policy."""
    known = figures(of)
    return [(one.name, one.default, known[one.name].meaning) for one in dataclasses.fields(of)]
