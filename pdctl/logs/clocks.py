"""The clock of each log: which zone its stamps are in, and which day those without a date belong to."""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.logs.clock import DAY, Clock, undated_since
from pdctl.logs.clock import zone_of as offset_zone
from pdctl.logs.part import modified

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.logs.glance import Glance
    from pdctl.logs.source import Log


class Clocks:
    """`zone`: asked for; None: the one a log betrays itself, else this machine's. notes: what is taken for granted."""

    def __init__(self, logs: Sequence[Log], zone: dt.tzinfo | None, glance: Callable[[Log], Glance]) -> None:
        self._logs, self._zone, self._glance = logs, zone, glance
        self._clocks: dict[str, Clock] = {}
        self.notes: tuple[str, ...] = ()

    def of(self, log: Log) -> Clock:
        found = self._clocks.get(log.instance)
        if found is None:
            found = self._clocks[log.instance] = Clock(self.zone_of(log), lambda: self.since(log))
        return found

    def zone_of(self, log: Log) -> dt.tzinfo | None:
        return self._zone or offset_zone(self._glance(log).identity.facts.get("utc_offset", ""))

    def since(self, log: Log) -> float:
        """An undated stamp belongs to the days around its own log's dates, if it has any."""
        own = self._dated(log)
        return self._common if own is None else own[0] - DAY / 2

    def _dated(self, log: Log) -> tuple[float, float] | None:
        """First and last moment of the windows looked at; None when their stamps have no date."""
        clock = self.of(log)
        read = [clock.read(stamp) for stamp in self._glance(log).stamps if stamp.year]
        moments = [instant.t for instant in read if instant is not None]
        return (min(moments), max(moments)) if moments else None

    @cached_property
    def _common(self) -> float:
        """One day for all logs without dates: files pasted together belong together."""
        ranges = {log.instance: self._dated(log) for log in self._logs}
        dated = [range_ for range_ in ranges.values() if range_ is not None]
        logs = [log for log in self._logs if ranges[log.instance] is None and self._glance(log).stamps]
        if not logs:
            return 0.0
        stamps = [stamp for log in logs for stamp in self._glance(log).stamps]
        clocks = [stamp.hour * 3600.0 + stamp.minute * 60.0 + stamp.second for stamp in stamps]
        changed = max(modified(log.parts[-1]) for log in logs)
        whole = (min(first for first, _ in dated), max(last for _, last in dated)) if dated else None
        since = undated_since(clocks, whole, changed, self._zone)
        day = dt.datetime.fromtimestamp(since + DAY / 2, self._zone)
        names = ", ".join(log.instance for log in logs)
        reason = "the day of the other logs" if dated else "the day of the files' last change"
        self.notes = (f"{names}: lines carry no date; taken to be of {day:%Y-%m-%d}, {reason}",)
        return since
