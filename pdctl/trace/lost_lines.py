"""Log lines that a process could not write; its own log says how many, and since when."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace.joins import PATIENCE
from pdctl.trace.room import MissingEvidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log

BEFORE = 30.0  # seconds before a room's first line that is left in which its first ones may have been written
SPANS = 256  # kept per log; later ones are joined to the last
STAMP = "%Y-%m-%d %H:%M:%S"
FREE = "free space where its log is (`pdctl doctor` says how much is left), and reproduce it"


@dataclass(frozen=True, slots=True)
class LostLines:
    """The lines one log lacks. first, last: between these times, as that log writes them. place: of its last word.

    spans: the periods in which they were to be written, in epoch seconds, in order. why: the error of the last of them.
    """

    instance: str
    lines: int
    first: str
    last: str
    why: str
    place: str
    spans: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        number = f"{self.lines} line{'s' if self.lines != 1 else ''}"
        period = f"between {self.first} and {self.last}"
        return f"{number} of {self.instance} {period} could not be written: {self.why} ({self.place})"

    def may_name(self, since: float, until: float) -> bool:
        """Whether a room with lines between these times may have had others among the lost ones, its end included."""
        return any(began <= until + PATIENCE and since - BEFORE <= ended for began, ended in self.spans)

    @property
    def missing_evidence(self) -> MissingEvidence:
        return MissingEvidence(str(self), FREE)


def lost_lines(library: Library, events: Iterable[Event]) -> tuple[LostLines, ...]:
    """What each log lacks of the period that was asked for, as far as `events` tell."""
    told: dict[str, list[tuple[Event, tuple[float, float]]]] = {}
    logs = {log.instance: log for log in library.logs}
    since, until = library.limits or (float("-inf"), float("inf"))
    for event in events:
        span = _span(library, logs[event.instance], event) if event.proves(Sign.LINES_LOST) else None
        if span is not None and span[0] <= until and since <= span[1]:
            told.setdefault(event.instance, []).append((event, span))
    return tuple(_of_log(name, found) for name, found in told.items())


def _span(library: Library, log: Log, event: Event) -> tuple[float, float] | None:
    began = library.instant(log, f"[{event.values['since']}] since".encode())
    if event.t is None or began is None:
        return None
    return min(began.t, event.t), event.t + event.uncertainty_s


def _of_log(name: str, found: Sequence[tuple[Event, tuple[float, float]]]) -> LostLines:
    event, (began, _) = min(found, key=lambda pair: pair[1][0])
    latest, (_, ended) = max(found, key=lambda pair: pair[1][1])
    first = event.values["since"]
    last = dt.datetime.strptime(first, STAMP) + dt.timedelta(seconds=ended - latest.uncertainty_s - began)
    lines = sum(numerals.whole(each.values["lost"]) or 0 for each, _ in found)
    spans = tuple(_joined(sorted(span for _, span in found)))
    return LostLines(name, lines, first, last.strftime(STAMP), latest.values["reason"], str(latest.place), spans)


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that overlap as one; of more than SPANS, the last reaches to the end."""
    kept: list[tuple[float, float]] = []
    for began, ended in spans:
        if kept and (began <= kept[-1][1] or len(kept) == SPANS):
            kept[-1] = (kept[-1][0], max(kept[-1][1], ended))
        else:
            kept.append((began, ended))
    return kept
