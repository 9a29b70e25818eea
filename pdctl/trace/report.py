"""A judged case written down as a `Room`: steps on one clock, evidence, durations, the gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.trace import canaries, signs
from pdctl.trace.clocks import Common, offsets
from pdctl.trace.durations import at_router, durations
from pdctl.trace.gaps import gap
from pdctl.trace.notes import notes
from pdctl.trace.outcomes import phase_reached
from pdctl.trace.room import Evidence, Lane, Room, Step, WrongPrefill
from pdctl.trace.story import ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.case import Case
    from pdctl.trace.known import Known
    from pdctl.trace.room import Missing, Outcome
    from pdctl.trace.verdict import Verdict

ROLES = ("router", "prefill", "decode", "")


def report(case: Case, ended: Outcome, shown: Event | None, verdict: Verdict, lacking: tuple[Missing, ...]) -> Room:
    who = case.who
    lines = _lines(case)
    lanes = _lanes(case, lines)
    shifts, clocks = offsets(lines, [lane.instance for lane in lanes])
    if verdict.cause is not None and verdict.cause.code == "PD717":  # what came late lay unread: no clock is wrong
        shifts, clocks = {}, ()
    common = Common(lines, shifts)
    began, ended_at = common.began, common.ended
    since_began = common.since_began

    steps = tuple(_sorted(_step(event, since_began(event), common.step_s) for event in lines))
    measured = durations(case.story.events, common.exactly)
    if began is not None:
        measured += at_router(case.joined.attempts, began)
    measured = common.started(measured)
    code = verdict.cause.code if verdict.cause else ""
    return Room(
        case.story.room,
        {name: ", ".join(rids) for name, rids in case.story.rids.items()},
        ended,
        _value(who.requested),
        _value(who.contacted),
        _value(who.decode),
        phase_reached(case, ended),
        verdict.cause,
        steps,
        _evidence(case, verdict, shown),
        lacking,
        verdict.fix,
        began,
        ended_at,
        lanes,
        measured,
        gap(steps, measured, code),
        clocks,
        _wrong(who.requested, who.contacted),
        verdict.consequences,
        tuple(_shown(event, "an effect, not the cause") for event in lines if event.row.echo),
        {name: known.why for name, known in _attributes(case) if known is not None},
        notes(case, verdict, ended),
        case.warm_up,
        canaries.ours(case.story),
    )


def _lines(case: Case) -> tuple[Event, ...]:
    """The room's own, and the router's of the one attempt it can have been."""
    found = list(case.story.events)
    listed = [attempt for attempt in case.joined.attempts if attempt.listed]
    if len(case.joined.attempts) == len(listed) == 1:
        seen = {(event.place.file, event.place.offset) for event in found}
        found += [event for event in listed[0].lines if (event.place.file, event.place.offset) not in seen]
    return ordered(found)


def _lanes(case: Case, lines: Sequence[Event]) -> tuple[Lane, ...]:
    found: dict[str, Lane] = {}
    for name, known in _attributes(case):
        if known is not None:
            role = "decode" if name == "decode" else "prefill"
            found.setdefault(known.value, Lane(known.value, role, known.why))
    for event in lines:
        found.setdefault(event.instance, Lane(event.instance, event.role, "its lines name the room or its request"))
    return tuple(sorted(found.values(), key=lambda lane: ROLES.index(lane.role) if lane.role in ROLES else len(ROLES)))


def _attributes(case: Case) -> tuple[tuple[str, Known | None], ...]:
    who = case.who
    return (("prefill_requested", who.requested), ("prefill_contacted", who.contacted), ("decode", who.decode))


def _evidence(case: Case, verdict: Verdict, shown: Event | None) -> tuple[Evidence, ...]:
    """What the verdict rests on, then what the answers rest on, each line once."""
    found: dict[tuple[str, int], Evidence] = {}
    proofs = list(verdict.finding.proofs) if verdict.finding else []
    said = [(proof.says, proof.event) for proof in proofs]
    for name, known in _attributes(case):
        if known is not None:
            said += [(f"{name} is {known.value}: {known.why}", event) for event in known.events]
    if case.who.arrived is not None:
        said += [(f"the KV cache reached it: {case.who.arrived.why}", event) for event in case.who.arrived.events]
    if shown is not None:
        said.append(("how it ended", shown))
    for says, event in said:
        found.setdefault((event.place.file, event.place.offset), _shown(event, says))
    return tuple(found.values())


def _shown(event: Event, says: str) -> Evidence:
    return Evidence(event.instance, event.place.path, event.place.line, event.text, says)


def _step(event: Event, delta: float | None, step_s: float) -> Step:
    return Step(
        event.instance, event.role, event.rank, event.phase, event.t, delta, max(event.uncertainty_s, step_s),
        event.place.path,
        event.place.line, event.place.offset, event.text, event.row.id, event.rid or "",
        event.row.echo or signs.notice(event),
    )  # fmt: skip


def _sorted(steps: Iterable[Step]) -> list[Step]:
    """By time on the common clock; a line without one stays behind the line above it.

    Which of two files' lines of one moment came first nobody knows; they stand as a room usually goes.
    """
    keyed: list[tuple[float, int, int, Step]] = []
    seen: dict[str, tuple[float, int]] = {}
    for at, step in enumerate(steps):
        before, reached = seen.get(step.file, (float("-inf"), 0))
        moment = step.delta_s if step.delta_s is not None else before
        usual = _usual(step) if moment > before else max(_usual(step), reached)
        seen[step.file] = (moment, usual)
        keyed.append((moment, usual, at, step))
    return [step for *_, step in sorted(keyed, key=lambda key: key[:3])]


def _usual(step: Step) -> int:
    """Ends last, the router's after those it waits for."""
    if step.phase is None:
        return 0
    return step.phase.order + (100 if step.role == "router" and step.phase.ends else 0)


def _wrong(asked: Known | None, met: Known | None) -> WrongPrefill | None:
    if asked is None or met is None or asked.value == met.value:
        return None
    return WrongPrefill(asked.value, met.value, asked.by_elimination)


def _value(known: Known | None) -> str | None:
    return known.value if known else None
