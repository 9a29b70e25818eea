"""The steps of a role switch, and its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pdctl.switch import switch_order
from pdctl.switch.switch_order import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.render.term import Term
    from pdctl.switch.switch_order import Result, StepNote, SwitchOrder
    from pdctl.switch.switch_refusals import SwitchRefusal


def note(one: StepNote, term: Term) -> None:
    """Write `  drain    idle (2.1 s)`; a step still in progress has no time."""
    took = f" ({one.seconds:.1f} s)" if one.seconds is not None else " …"
    term.write(f"  {one.step.value:<8} {one.words}{took}")


def head(order: SwitchOrder, role: str, term: Term) -> None:
    where = "" if order.name == order.url else f" ({order.url})"
    words = f"a {role} already" if role == order.to else f"{role} -> {order.to}"
    term.write(f"{order.name}{where}: {words}")


def plan(order: SwitchOrder, role: str, notes: Iterable[StepNote], term: Term) -> None:
    head(order, role, term)
    for one in notes:
        term.write(f"  {one.step.value:<8} {one.words}")


def refused(order: SwitchOrder, found: Iterable[SwitchRefusal], term: Term) -> None:
    term.write(term.style(f"{order.name} cannot become a {order.to} now; nothing was changed", "red"))
    for one in found:
        term.write(f"  {one.reason}")
        if one.fix:
            term.write(f"    fix: {one.fix}")


def result(one: Result, term: Term) -> None:
    whole = sum(seconds for _, seconds in one.durations)
    if one.standing is Standing.SWITCHED:
        term.write(f"{one.name} is a {one.new_role} now, after {whole:.1f} s")
        return
    state = f"{one.name} serves as a {one.old_role} as before" if one.standing is Standing.AS_BEFORE else ""
    term.write(term.style(f"{one.problem}{'; ' + state if state else ''}", "red"))
    if one.fix:
        term.write(f"  fix: {one.fix}")


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
