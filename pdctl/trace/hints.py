"""What a list of rooms must not keep silent about: a death, logs whose healthy rooms leave no line, foreign files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.row import Level
from pdctl.trace import crashes
from pdctl.trace.deployment import Deployment
from pdctl.trace.diagnosis import Kind
from pdctl.trace.missing import LOG_REQUESTS, TIME_STATS
from pdctl.trace.sources import sources

if TYPE_CHECKING:
    from pdctl.logs.library import Library

LIMIT = 1 << 28  # bytes of logs up to which they are searched for deaths once more
DIAGNOSE = "`pdctl diagnose` with the same paths says what happened"


class Hints:
    """`died`: instances that ended without an order. quiet: engines that write no line about a healthy room.

    strange: what was said of each log that is no engine's and no router's. known: some log is, and has a line in the
    window that is asked for.
    """

    def __init__(self, library: Library) -> None:
        deployment = Deployment.of(library)
        small = sum(log.size for log in library.logs) <= LIMIT
        lines = (
            list(library.said(crashes.wanted)) if small else [x for i in deployment.instances.values() for x in i.final]
        )
        self.died = tuple(dict.fromkeys(each.death.instance.name for each in crashes.ended(library, deployment, lines)))
        engines = (*deployment.prefills, *deployment.decodes)
        self.quiet = tuple(
            one.name
            for one in engines
            if one.identity.level is not Level.DEBUG and not (one.identity.log_requests or one.identity.time_stats)
        )
        found = sources(library, deployment)
        unread = {log.instance: log.notes[0] for log in library.logs if log.notes and not log.size}
        self.strange = tuple(unread.get(one.instance, f"{one.instance}: {one.said}") for one in found if one.said)
        empty = library.limits is not None and library.empty
        self.known = not empty and any(one.kind in (Kind.ENGINE, Kind.ROUTER, Kind.MIXED) for one in found)

    def lines(self, listed: bool) -> tuple[str, ...]:
        """One sentence each. `listed`: some room was found, so that a level that hides healthy ones is no surprise."""
        said = [f"{name} died: {DIAGNOSE}" for name in self.died]
        if not listed and self.known and not self.died:
            if self.quiet:
                flags = f"{LOG_REQUESTS} or {TIME_STATS}"
                said.append(
                    f"no line names a room: {', '.join(self.quiet)} write none about a healthy room without {flags}"
                )
            else:
                said.append("no line of these logs names a room")
        return (*said, *self.strange)

    def of_one(self) -> tuple[str, ...]:
        """Why a room that was asked for by its number may have left no line; others may have."""
        said = [f"{name} died: {DIAGNOSE}" for name in self.died]
        if self.quiet and not self.died:
            flags = f"{LOG_REQUESTS} or {TIME_STATS}"
            said.append(f"{', '.join(self.quiet)} write no line about a healthy room without {flags}")
        return (*said, *self.strange)
