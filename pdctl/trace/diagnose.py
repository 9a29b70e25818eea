"""`diagnose`: from logs alone and without a given room, find what died and what broke the rooms of a deployment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import Severity, fill, fill_fix
from pdctl.engines import numerals
from pdctl.engines.base import Level, Sign, Speaker
from pdctl.logs.log_sample import SOON
from pdctl.trace.case import NEAR, missed_url
from pdctl.trace.deployment_report import (
    DeploymentFinding,
    Diagnosis,
    EffectLines,
    JudgedDeployment,
    RoomTally,
    SourceKind,
    read_sources,
)
from pdctl.trace.joins import AnsweredRequests
from pdctl.trace.joins import is_counted as counted
from pdctl.trace.log_groups import group_logs
from pdctl.trace.misrouted_prefills import misrouted
from pdctl.trace.observed_deployment import (
    SEPARATE,
    parse_address,
)
from pdctl.trace.proven_deaths import (
    ProvenDeath,
    as_evidence,
    codes_of,
    fills_of_line,
    next_start,
    proven_deaths,
    reported_death,
    requests_running,
    shows_death,
)
from pdctl.trace.room import BROKEN, MissingEvidence, RoomOutcome
from pdctl.trace.room_events import left_on_purpose, lost_lines
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import LOG_REQUESTS, TIME_STATS, WHOLE, Tracer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.engines.base import Row
    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.trace.deployment_report import Death, LogSource
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance
    from pdctl.trace.room import ClockOffset, Room, RoomSummary
    from pdctl.trace.room_events import LostLines

TRACED, FEW = 200, 6  # broken rooms to trace: in small logs, and in large ones, where each costs a scan
KEPT = 2000  # lines kept per row and instance: the first and the last ones
# Codes whose error line is a finding by itself, regardless of what happened to any room. A code belongs here if rows
# carry it as their cause and one such line, at level error or above, proves that something has to be mended.
STANDING = frozenset(
    {
        "PD204", "PD218", "PD220", "PD225",
        "PD302", "PD303", "PD304", "PD306", "PD308", "PD309", "PD311", "PD315", "PD316", "PD318", "PD325",
        "PD408", "PD710", "PD711", "PD712",
    }
)  # fmt: skip
DOWN = "PD604"
LOUD = (Level.ERROR, Level.CRITICAL)
# Codes that a room's own failure line or a death already reports; they show up as the cause of the room. A code belongs
# here if counting its lines as effects would say the same thing twice.
OF_ROOMS = frozenset({"PD706", "PD707", "PD709", "PD715"})
SHOWN = 12  # unknowns to list at most
GIVE = "give its log as well"


def diagnose_each(library: Library) -> tuple[JudgedDeployment, ...]:
    """Each deployment whose logs these are, judged as if they had been given alone."""
    groups = group_logs(library)
    if len(groups) == 1:
        return (JudgedDeployment("", diagnose(library)),)
    return tuple(
        JudgedDeployment(" ".join(map(str, group.directories)), diagnose(library.only(group.logs))) for group in groups
    )


def diagnose(library: Library) -> Diagnosis:
    tracer = Tracer(library)
    found = room_summaries(tracer)
    broken = [one for one in found if one.outcome in BROKEN]
    suspect = [*broken, *(one for one in found if one.code and one.outcome not in BROKEN)]
    traced = [tracer.trace(one.room) for one in _chosen(suspect, library)]
    examined = tuple(traced)
    left = {room.room for room in traced if left_on_purpose(room)}
    traced = [room for room in traced if room.room not in left]
    found = tuple(one for one in found if one.room not in left)
    broken = [one for one in broken if one.room not in left]
    served = AnsweredRequests()
    lines = tuple(_first_and_last(served.passing(library.said(_wanted))))
    gone = list(proven_deaths(library, tracer.deployment, [event for event in lines if shows_death(event.row)]))
    died, others = _deaths(gone, lines, traced, library, served)
    findings = _findings(others)
    known = {one.code for one in died} | {one.code for one in findings}
    findings += [one for one in misrouted(tracer.deployment) if one.code not in known]
    known |= {one.code for one in findings}
    told = [event for event in lines if event.row.cause and not event.row.echo]
    standing, rest = _standing(_unrecovered(told, served, tracer.deployment), known, tracer.deployment)
    findings += standing
    harmless = {room for one in findings if not one.grave for room in one.rooms}
    unexplained = tuple(room.room for room in traced if room.cause is None and room.outcome in BROKEN)
    tally = RoomTally(
        dict(Counter(one.outcome.value for one in found)), sum(1 for one in broken if one.room not in harmless),
        sum(1 for room in traced if room.outcome in BROKEN), unexplained, served.answered,
        len(left),
    )  # fmt: skip
    lost = lost_lines(library, library.losses)
    shown = read_sources(library, tracer.deployment)
    untold = unknowns(
        tracer.deployment, shown, died, lost, [room for room in traced if room.room in unexplained], found, lines
    )
    empty = library.limits is not None and library.empty
    return Diagnosis(
        shown, tuple(died), tuple(findings), rest, tally, untold,
        (*_told_to_end(died, lines, tracer.deployment), *_cut_by_stop(found, lines), *library.notes),
        library.limits, empty,
        lost_lines=lost, contradiction=tracer.deployment.contradiction,
        clocks=_clocks([*examined, *_one_of_each_pair(tracer, found, examined)]),
    )  # fmt: skip


def _told_to_end(died: Sequence[Death], lines: Iterable[Event], deployment: ObservedDeployment) -> Iterator[str]:
    """One sentence for those of a launch that ended only because they were ended, after the first death: no cause.

    One that was started again ended nothing.
    """
    final = [one for one in died if one.back is None]
    if not final:
        return
    first = min(final, key=lambda one: one.since)
    others = {one.name for one in deployment.instances.values() if one.watched} - {one.instance for one in died}
    ordered: dict[str, Event] = {}
    for event in lines:
        if event.instance not in others or not event.proves(Sign.ORDERED_TO_END):
            continue
        if event.t is None or event.t < first.since - NEAR:
            continue
        known = ordered.setdefault(event.instance, event)
        if event.row.speaker is Speaker.LAUNCHER and event.t <= (known.t or event.t) + SOON:
            ordered[event.instance] = event  # its own line does not tell who ended it
    for by_launcher, how in ((True, "pdctl ended"), (False, "an order ended")):
        ended = [event for event in ordered.values() if (event.row.speaker is Speaker.LAUNCHER) is by_launcher]
        if ended:
            names = ", ".join(f"{event.instance} ({event.place})" for event in ended)
            yield f"no cause: after {first.instance} had died, {how} {names}"


def _cut_by_stop(rooms: Iterable[RoomSummary], lines: Iterable[Event]) -> Iterator[str]:
    """One sentence for each decode that its launcher ended while rooms without an end were there."""
    open_rooms = [room for room in rooms if room.outcome is RoomOutcome.UNKNOWN and room.first_seen is not None]
    for event in lines:
        if event.row.speaker is not Speaker.LAUNCHER or not event.proves(Sign.ORDERED_TO_END) or event.t is None:
            continue
        cut = [room for room in open_rooms if room.decode == event.instance and (room.first_seen or 0.0) <= event.t]
        open_rooms = [room for room in open_rooms if room not in cut]
        if cut:
            count = "1 room was" if len(cut) == 1 else f"{len(cut)} rooms were"
            yield f"{count} cut by the stop of the run: pdctl ended {event.instance} ({event.place}) before their end"


def _wanted(row: Row) -> bool:
    return bool(row.cause) or shows_death(row) or counted(row) or Sign.WAITING_FOR_PAGES in row.proves


def _first_and_last(lines: Iterable[Event]) -> Iterable[Event]:
    """The first and last KEPT // 2 lines of each kind per instance, so that memory does not grow with the logs."""
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


def _chosen(broken: Sequence[RoomSummary], library: Library) -> Sequence[RoomSummary]:
    """All of them if the logs are small, else the first and the last few, after one room for each distinct cause."""
    if sum(log.size for log in library.logs) <= WHOLE:
        return broken[:TRACED]
    by_code = {one.code: one for one in reversed(broken)}
    chosen = dict.fromkeys([*by_code.values(), *broken[: FEW // 2], *broken[-FEW // 2 :]])
    return list(chosen)[:FEW]


def _one_of_each_pair(tracer: Tracer, found: Iterable[RoomSummary], examined: Iterable[Room]) -> Iterator[Room]:
    """A room of each pair of which none was traced, for what lines of both tell of their clocks; none in large logs."""
    if sum(log.size for log in tracer.library.logs) > WHOLE:
        return
    known = {(room.prefill_requested, room.decode) for room in examined}
    pairs: dict[tuple[str | None, str | None], int] = {}
    for one in found:
        if (one.prefill, one.decode) not in known:
            pairs.setdefault((one.prefill, one.decode), one.room)
    yield from map(tracer.trace, list(pairs.values())[:FEW])


def _clocks(rooms: Iterable[Room]) -> tuple[ClockOffset, ...]:
    """By how much an instance's clock is off, by the room that shows least of it: the rest may be a long wait."""
    least: dict[str, ClockOffset] = {}
    for room in rooms:
        for clock in room.clocks:
            known = least.get(clock.instance)
            if clock.offset_s is None:
                continue
            if known is None or known.offset_s is None or abs(clock.offset_s) < abs(known.offset_s):
                why = f"against {room.lanes[0].instance}, in room {room.room}: {clock.why}"
                least[clock.instance] = clock._replace(why=why)
    return tuple(least.values())


def _deaths(
    gone: Sequence[ProvenDeath],
    lines: Sequence[Event],
    traced: Sequence[Room],
    library: Library,
    served: AnsweredRequests,
) -> tuple[list[Death], list[Room]]:
    """The deaths with the rooms that each broke, and the rooms that broke for another reason."""
    taken: dict[int, list[Room]] = {at: [] for at in range(len(gone))}
    left = []
    for room in traced:
        owner = _owner(room, gone)
        if owner is None:
            left.append(room)
        else:
            taken[owner].append(room)
    told = []
    last = {each.death.instance.name: each.death.at for each in sorted(gone, key=lambda each: each.death.at)}
    for at, each in enumerate(gone):
        name, back = each.death.instance.name, next_start(each.death, gone)
        serves = back is not None and each.death.at == last[name] and served.answered_after(name, back)
        running = requests_running(each.death, lines, library)
        told.append(reported_death(each, taken[at], running)._replace(back=back, serves=serves))
    return sorted(told, key=lambda one: one.at), left


def _owner(room: Room, gone: Sequence[ProvenDeath]) -> int | None:
    """Index of the death that caused the room to fail: the last one of the cause's instance before the room ended."""
    if room.cause is None:
        return None
    mine = [
        at
        for at, each in enumerate(gone)
        if each.death.instance.name == room.cause.instance and room.cause.code in codes_of(each.death)
    ]
    ended = room.ended
    before = [at for at in mine if ended is None or gone[at].death.since <= ended + 1.0]
    return max(before or mine, key=lambda at: gone[at].death.since, default=None)


def _findings(rooms: Sequence[Room]) -> list[DeploymentFinding]:
    """One finding per cause and instance; the one that broke most rooms comes first."""
    groups: dict[tuple[str, str], list[Room]] = {}
    for room in rooms:
        if room.cause is not None:
            groups.setdefault((room.cause.code, room.cause.instance), []).append(room)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    return [_finding(group) for group in ordered]


def _finding(group: Sequence[Room]) -> DeploymentFinding:
    first = group[0]
    cause = first.cause
    assert cause is not None
    times = [one.began for one in group if one.began is not None] + [
        one.ended for one in group if one.ended is not None
    ]
    return DeploymentFinding(
        cause.code, cause.slug, cause.headline, cause.why, cause.instance, tuple(one.room for one in group),
        min(times, default=None), max(times, default=None), first.evidence, first.fix,
        entry(cause.code).severity is not Severity.INFO,
    )  # fmt: skip


def _unrecovered(told: Iterable[Event], served: AnsweredRequests, deployment: ObservedDeployment) -> list[Event]:
    """The lines, without those that call an instance down which later answered a request with 200: it recovered."""

    def recovered(event: Event) -> bool:
        owner = deployment.at_url(event.values["url"]) if "url" in event.values else None
        name = owner.name if owner is not None else event.instance
        return event.row.cause == DOWN and event.t is not None and served.answered_after(name, event.t)

    return [event for event in told if not recovered(event)]


def _standing(
    lines: Sequence[Event], known: Iterable[str], deployment: ObservedDeployment
) -> tuple[list[DeploymentFinding], tuple[EffectLines, ...]]:
    """Errors that are findings by themselves, and counts of the lines that only name an effect."""
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
            findings.append(_finding_of_line(event, deployment.instances.get(instance)))
        else:
            remarks.append(EffectLines(code, slug, instance, count[key], as_evidence(event, "")))
    return findings, tuple(remarks)


def _finding_of_line(event: Event, instance: ObservedInstance | None) -> DeploymentFinding:
    known = entry(event.row.cause)
    fills = fills_of_line(event, instance)
    return DeploymentFinding(
        known.code, known.slug, fill(known.headline, fills), f"{event.instance} says so: {event.text.strip()[:200]}",
        event.instance, (), event.t, event.t, (as_evidence(event, "its own line says so"),), fill_fix(known.fix, fills),
    )  # fmt: skip


def unknowns(
    deployment: ObservedDeployment,
    sources: Sequence[LogSource],
    died: Sequence[Death],
    lost: Sequence[LostLines],
    unexplained: Sequence[Room],
    rooms: Sequence[RoomSummary],
    lines: Sequence[Event],
) -> tuple[MissingEvidence, ...]:
    found = dict.fromkeys(_unknowns(deployment, sources, died, lost, unexplained, rooms, lines))
    return tuple(found)[:SHOWN]


def _unknowns(
    deployment: ObservedDeployment,
    sources: Sequence[LogSource],
    died: Sequence[Death],
    lost: Sequence[LostLines],
    unexplained: Sequence[Room],
    rooms: Sequence[RoomSummary],
    lines: Sequence[Event],
) -> Iterator[MissingEvidence]:
    yield from (one.missing_evidence for one in lost)
    for source in sources:
        if source.kind is SourceKind.MIXED:
            yield MissingEvidence(f"which process wrote which line of {source.instance}", SEPARATE)
    for death in died:
        yield from death.untold
    engines = (*deployment.prefills, *deployment.decodes)
    if not engines and not any(source.kind is SourceKind.ROUTER for source in sources):
        return
    for role, instances in (("prefill", deployment.prefills), ("decode", deployment.decodes)):
        if not instances:
            yield MissingEvidence(f"no {role}'s log is here", "give the logs of all instances")
    not_begun = died and not rooms and all(one.watched for one in engines)  # a launch starts its router last
    if not any(source.kind is SourceKind.ROUTER for source in sources) and engines and not not_begun:
        yield MissingEvidence("which bootstrap ports the router sends: no router's log is here", GIVE)
    yield from _missing_logs(deployment, lines)
    yield from _waiting_unnamed(deployment, rooms, lines)
    for room in unexplained:
        yield from room.missing_evidence
    quiet = [one.name for one in engines if not (one.identity.log_requests or one.identity.time_stats)]
    if quiet and not any(one.outcome.value == "ok" for one in rooms):
        what = f"which rooms went well: at their log level {', '.join(quiet)} write no line about such a room"
        yield MissingEvidence(what, f"{LOG_REQUESTS} (or {TIME_STATS}) on {', '.join(quiet)}")


def _waiting_unnamed(
    deployment: ObservedDeployment, rooms: Sequence[RoomSummary], lines: Sequence[Event]
) -> Iterator[MissingEvidence]:
    """Requests that the last batch lines of a prefill count as waiting for a decode, more than its unfinished rooms."""
    for one in deployment.prefills:
        told = [event for event in lines if event.instance == one.name and event.proves(Sign.WAITING_FOR_PAGES)]
        counts = [numerals.whole(event.values.get("bootstrap", "")) or 0 for event in told]
        began = max((at + 1 for at, count in enumerate(counts) if not count), default=0)
        named = sum(1 for room in rooms if room.prefill == one.name and room.outcome.value != "ok")
        if not counts[began:] or min(counts[began:]) <= named:
            continue
        count, first, last = min(counts[began:]) - named, told[began], told[-1]
        who = "1 request" if count == 1 else f"{count} requests"
        span = f"at {first.place}" if last is first else f"from {first.place} to {last.place}"
        what = f"what became of {who} that waited at {one.name} for a decode {span}: no line names the rooms"
        yield MissingEvidence(what, f"{LOG_REQUESTS} on {one.name}, and the router's log")


def _missing_logs(deployment: ObservedDeployment, lines: Sequence[Event]) -> Iterator[MissingEvidence]:
    """Workers and bootstrap servers that other processes try to reach and whose logs were not given."""
    for router in deployment.routers:
        for url in (*(target.url for target in router.prefills), *router.decodes):
            if deployment.at_url(url) is None:
                yield MissingEvidence(
                    f"what {url} did: the router hands it out, and none of these logs is known to be its", GIVE
                )
    seen: set[str] = set()
    for event in lines:
        missed = missed_url(event)
        if missed is None or missed in seen or parse_address(missed) is None:
            continue
        seen.add(missed)
        if deployment.at_url(missed) is None:
            yield MissingEvidence(
                f"what became of {missed}: {event.instance} could not reach it, and none of these logs is its", GIVE
            )
