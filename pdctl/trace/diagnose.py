"""`diagnose`: what happened to a deployment, from its logs alone and without a room: who died, what broke the rooms."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import Severity, fill
from pdctl.engines.row import Level
from pdctl.trace import crashes
from pdctl.trace.assemble import WHOLE, Tracer
from pdctl.trace.canaries import left_on_purpose
from pdctl.trace.diagnosis import Diagnosis, Finding, Remark, Tally
from pdctl.trace.lacking import lacking
from pdctl.trace.misrouting import misrouted
from pdctl.trace.room import Outcome
from pdctl.trace.served import Served
from pdctl.trace.served import wanted as counted
from pdctl.trace.sources import sources
from pdctl.trace.summary import summaries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.engines.row import Row
    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.trace.diagnosis import Death
    from pdctl.trace.room import Room, Summary

BROKEN = (Outcome.FAILED, Outcome.HUNG)
TRACED, FEW = 200, 6  # broken rooms that are traced: of small logs, and of large ones, where each costs a scan
KEPT = 2000  # lines of one row and instance that are kept: the first and the last
# Codes whose error line is a finding by itself, whatever became of any room.
STANDING = frozenset(
    {
        "PD204", "PD218", "PD302", "PD303", "PD304", "PD306", "PD308", "PD309", "PD311", "PD315", "PD316", "PD318",
        "PD325",
        "PD408", "PD710", "PD711", "PD712",
    }
)  # fmt: skip
LOUD = (Level.ERROR, Level.CRITICAL)
# What a room's own failure line and its death already say; a room's cause takes them up.
OF_ROOMS = frozenset({"PD706", "PD707", "PD709", "PD715"})


def diagnose(library: Library) -> Diagnosis:
    tracer = Tracer(library)
    found = summaries(library)
    broken = [one for one in found if one.outcome in BROKEN]
    suspect = [*broken, *(one for one in found if one.code and one.outcome not in BROKEN)]
    traced = [tracer.trace(one.room) for one in _chosen(suspect, library)]
    left = {room.room for room in traced if left_on_purpose(room)}
    traced = [room for room in traced if room.room not in left]
    found = tuple(one for one in found if one.room not in left)
    broken = [one for one in broken if one.room not in left]
    served = Served()
    lines = tuple(_few(served.passing(library.said(_wanted))))
    gone = list(crashes.ended(library, tracer.deployment, [event for event in lines if crashes.wanted(event.row)]))
    died, others = _deaths(gone, lines, traced)
    findings = _findings(others)
    known = {one.code for one in died} | {one.code for one in findings}
    findings += [one for one in misrouted(tracer.deployment) if one.code not in known]
    known |= {one.code for one in findings}
    standing, rest = _standing([event for event in lines if event.row.cause and not event.row.echo], known)
    findings += standing
    harmless = {room for one in findings if not one.grave for room in one.rooms}
    unexplained = tuple(room.room for room in traced if room.cause is None and room.outcome in BROKEN)
    tally = Tally(
        dict(Counter(one.outcome.value for one in found)), sum(1 for one in broken if one.room not in harmless),
        sum(1 for room in traced if room.outcome in BROKEN), unexplained, served.answered,
        len(left),
    )  # fmt: skip
    shown = sources(library, tracer.deployment)
    unknowns = lacking(
        tracer.deployment, shown, died, [room for room in traced if room.room in unexplained], found, lines
    )
    empty = library.limits is not None and library.empty
    return Diagnosis(
        shown, tuple(died), tuple(findings), rest, tally, unknowns, library.notes, library.limits, empty
    )  # fmt: skip


def _wanted(row: Row) -> bool:
    return bool(row.cause) or crashes.wanted(row) or counted(row)


def _few(lines: Iterable[Event]) -> Iterable[Event]:
    """Of each kind of line of an instance the first and last KEPT // 2: memory does not grow with the logs."""
    first: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], list[Event]] = {}
    for event in lines:
        key = (event.instance, event.row.id)
        first[key] += 1
        if first[key] <= KEPT // 2:
            yield event
            continue
        kept = last.setdefault(key, [])
        kept.append(event)
        if len(kept) > KEPT:
            del kept[: KEPT // 2]
    for kept in last.values():
        yield from kept[-KEPT // 2 :]


def _chosen(broken: Sequence[Summary], library: Library) -> Sequence[Summary]:
    """All of them where the logs are small; of large ones the first and the last few, with causes that differ first."""
    if sum(log.size for log in library.logs) <= WHOLE:
        return broken[:TRACED]
    by_code = {one.code: one for one in reversed(broken)}
    chosen = dict.fromkeys([*by_code.values(), *broken[: FEW // 2], *broken[-FEW // 2 :]])
    return list(chosen)[:FEW]


def _deaths(
    gone: Sequence[crashes.Ended], lines: Sequence[Event], traced: Sequence[Room]
) -> tuple[list[Death], list[Room]]:
    """The deaths with the rooms each took along, and the rooms that broke of something else."""
    taken: dict[int, list[int]] = {at: [] for at in range(len(gone))}
    left = []
    for room in traced:
        owner = _owner(room, gone)
        if owner is None:
            left.append(room)
        else:
            taken[owner].append(room.room)
    told = [crashes.told(each, tuple(taken[at]), crashes.running(each.death, lines)) for at, each in enumerate(gone)]
    return sorted(told, key=lambda one: one.at), left


def _owner(room: Room, gone: Sequence[crashes.Ended]) -> int | None:
    """The death that is the room's cause: of the instance its cause names, the last one before the room ended."""
    if room.cause is None:
        return None
    mine = [
        at
        for at, each in enumerate(gone)
        if each.death.instance.name == room.cause.instance and room.cause.code in crashes.codes(each.death)
    ]
    ended = room.ended
    before = [at for at in mine if ended is None or gone[at].death.at <= ended + 1.0]
    return max(before or mine, key=lambda at: gone[at].death.at, default=None)


def _findings(rooms: Sequence[Room]) -> list[Finding]:
    """One for each cause and instance, the one that broke most rooms first."""
    groups: dict[tuple[str, str], list[Room]] = {}
    for room in rooms:
        if room.cause is not None:
            groups.setdefault((room.cause.code, room.cause.instance), []).append(room)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    return [_finding(group) for group in ordered]


def _finding(group: Sequence[Room]) -> Finding:
    first = group[0]
    cause = first.cause
    assert cause is not None
    times = [one.began for one in group if one.began is not None] + [
        one.ended for one in group if one.ended is not None
    ]
    return Finding(
        cause.code, cause.slug, cause.headline, cause.why, cause.instance, tuple(one.room for one in group),
        min(times, default=None), max(times, default=None), first.evidence, first.fix,
        entry(cause.code).severity is not Severity.INFO,
    )  # fmt: skip


def _standing(lines: Sequence[Event], known: Iterable[str]) -> tuple[list[Finding], tuple[Remark, ...]]:
    """Errors that are a finding by themselves, and the lines that only name an effect, counted."""
    first: dict[tuple[str, str], Event] = {}
    count: Counter[tuple[str, str]] = Counter()
    loud: set[tuple[str, str]] = set()
    for event in lines:
        if event.row.cause in known or event.row.cause in OF_ROOMS:
            continue
        key = (event.row.cause, event.instance)
        first.setdefault(key, event)
        count[key] += 1
        if event.row.level in LOUD:
            loud.add(key)
    findings, remarks = [], []
    for key, event in first.items():
        code, instance = key
        slug = entry(code).slug
        if code in STANDING and key in loud:
            findings.append(_said(event))
        else:
            remarks.append(Remark(code, slug, instance, count[key], crashes.shown(event, "")))
    return findings, tuple(remarks)


def _said(event: Event) -> Finding:
    known = entry(event.row.cause)
    fills = {"instance": event.instance, "observed": event.text.strip()[:120], "prefill": event.instance}
    return Finding(
        known.code, known.slug, fill(known.headline, fills), f"{event.instance} says so: {event.text.strip()[:200]}",
        event.instance, (), event.t, event.t, (crashes.shown(event, "its own line says so"),), fill(known.fix, fills),
    )  # fmt: skip
