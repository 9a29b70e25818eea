"""The attempts of all routers, and what their logs may lack of them.

Which attempt a room was is told by ruling the others out. That holds only where none is missing: where a router's log
began late, ended early, has a hole or a line that is not all there, the attempts that may have stood there are put
beside those that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace.attempts import Attempt, attempts, lost
from pdctl.trace.ledger import answers

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.deployment import Deployment, Instance

HEAD = 200  # lines in which the first stamp of a log is looked for


def dispatched(
    around: Sequence[Event],
    deployment: Deployment,
    begins: Mapping[str, float | None],
    torn: Container[str] = (),
    *,
    whole: bool,
) -> tuple[Attempt, ...]:
    """All attempts in `around`, and those that may be missing. begins: router → the stamp of its log's first line.

    torn: routers in whose logs lines are not all there, so that others may be missing.

    whole: `around` is all there is of the logs, so that what the engines answered can be counted against it.
    """
    routers = [one for one in deployment.instances.values() if one.role == "router"]
    found = attempts(around, {one.name: one.last for one in routers})
    missing = [each for one in routers for each in _outside(one, begins.get(one.name))]
    missing += [lost(one.name) for one in routers if one.name in torn]
    if whole and not any(one.lost for one in found):
        missing += [lost(one.name) for one in routers if _outnumbered(one, found, around, deployment)]
    return tuple(sorted((*found, *missing), key=lambda attempt: attempt.start))


def first(library: Library, log: Log) -> float | None:
    """The stamp of the log's first lines; None when none of them has one. A start is the beginning of all there is."""
    beginning = library.sample(log).head[:HEAD]
    times = [instant.t for line in beginning if (instant := library.instant(log, line)) is not None]
    return min(times, default=None)


def _outside(router: Instance, begun: float | None) -> Iterator[Attempt]:
    """In front of the first line, unless the log begins with the router's start; and behind the last one."""
    started = begun is not None and any(abs(start - begun) <= 1.0 for start in router.started)
    if not started:
        yield lost(router.name, until=begun)
    if router.last is not None and not router.clean:
        yield lost(router.name, since=router.last)


def _outnumbered(router: Instance, found: Sequence[Attempt], around: Iterable[Event], deployment: Deployment) -> bool:
    """An engine answered more requests since its start than the router's log shows attempts that went there."""
    mine = [one for one in found if one.router == router.name]
    if not mine or not all(one.listed for one in mine):
        return False  # at INFO the router names no pair
    answered: dict[str, int] = {}
    for event in around:
        if event.proves(Sign.READY) or event.proves(Sign.STARTED):
            answered[event.instance] = 0  # what came before was its own warm-up
        elif answers(event):
            answered[event.instance] = answered.get(event.instance, 0) + 1
    for engine in (*deployment.prefills, *deployment.decodes):
        sent = sum(1 for one in mine for url in (one.prefill, one.decode) if deployment.at_url(url) in (engine, None))
        if answered.get(engine.name, 0) > sent:
            return True
    return False
