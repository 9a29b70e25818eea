"""What no line tells about a deployment, and the flag, the log or the command that would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.trace import deaths as ends
from pdctl.trace.addresses import parse
from pdctl.trace.diagnosis import Kind
from pdctl.trace.missing import LOG_REQUESTS, TIME_STATS
from pdctl.trace.mixed import APART
from pdctl.trace.room import Missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.diagnosis import Death, Source
    from pdctl.trace.room import Room, Summary

SHOWN = 12  # unknowns that are listed
GIVE = "give its log as well"


def lacking(
    deployment: Deployment,
    sources: Sequence[Source],
    died: Sequence[Death],
    unexplained: Sequence[Room],
    rooms: Sequence[Summary],
    lines: Sequence[Event],
) -> tuple[Missing, ...]:
    found = dict.fromkeys(_lacking(deployment, sources, died, unexplained, rooms, lines))
    return tuple(found)[:SHOWN]


def _lacking(
    deployment: Deployment,
    sources: Sequence[Source],
    died: Sequence[Death],
    unexplained: Sequence[Room],
    rooms: Sequence[Summary],
    lines: Sequence[Event],
) -> Iterator[Missing]:
    for source in sources:
        if source.kind is Kind.MIXED:
            yield Missing(f"which process wrote which line of {source.instance}", APART)
    for death in died:
        yield from death.untold
    engines = (*deployment.prefills, *deployment.decodes)
    if not engines and not any(source.kind is Kind.ROUTER for source in sources):
        return
    for role, instances in (("prefill", deployment.prefills), ("decode", deployment.decodes)):
        if not instances:
            yield Missing(f"no {role}'s log is here", "give the logs of all instances")
    if not any(source.kind is Kind.ROUTER for source in sources) and engines:
        yield Missing("which bootstrap ports the router sends: no router's log is here", GIVE)
    yield from _elsewhere(deployment, lines)
    for room in unexplained:
        yield from room.missing_evidence
    quiet = [one.name for one in engines if not (one.identity.log_requests or one.identity.time_stats)]
    if quiet and not any(one.outcome.value == "ok" for one in rooms):
        what = f"which rooms went well: at their log level {', '.join(quiet)} write no line about such a room"
        yield Missing(what, f"{LOG_REQUESTS} (or {TIME_STATS}) on {', '.join(quiet)}")


def _elsewhere(deployment: Deployment, lines: Sequence[Event]) -> Iterator[Missing]:
    """Workers and bootstrap servers that others look for and whose log is not here."""
    for router in deployment.routers:
        for url in (*(target.url for target in router.prefills), *router.decodes):
            if deployment.at_url(url) is None:
                yield Missing(
                    f"what {url} did: the router hands it out, and none of these logs is known to be its", GIVE
                )
    seen: set[str] = set()
    for event in lines:
        missed = ends.missed_url(event)
        if missed is None or missed in seen or parse(missed) is None:
            continue
        seen.add(missed)
        if deployment.at_url(missed) is None:
            yield Missing(
                f"what became of {missed}: {event.instance} could not reach it, and none of these logs is its", GIVE
            )
