"""Seconds of a room as places on a line: to scale, but a gap never takes more than its share of the room."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.trace.room import Room

GAP_SHARE = 0.4  # of the line, at most; what happened around a silence of minutes must stay legible
LEAST = 1e-3  # seconds; a room of one line has a length too
NEAR = 4.0  # percent; ticks closer than this would stand on each other


class Stretch(NamedTuple):
    """`start` to `end` in seconds lies at `left` to `right` in percent."""

    start: float
    end: float
    left: float
    right: float


class Axis(NamedTuple):
    stretches: tuple[Stretch, ...]
    broken: bool

    @classmethod
    def of(cls, room: Room) -> Axis:
        starts = [each.start for each in room.durations if each.start is not None]
        ends = [step.delta_s + step.uncertainty_s for step in room.events if step.delta_s is not None]
        ends += [each.start + each.seconds for each in room.durations if each.start is not None]
        if room.gap is not None:
            starts.append(room.gap.start)
            ends.append(room.gap.end)
        first = min([0.0, *starts])  # what a time-out says it waited may begin before the first line
        last = max([first + LEAST, *ends])
        if room.gap is None or (room.gap.end - room.gap.start) / (last - first) <= GAP_SHARE:
            return cls((Stretch(first, last, 0.0, 100.0),), False)
        return cls(_broken((first, room.gap.start, min(room.gap.end, last), last)), True)

    def place(self, seconds: float) -> float:
        """Percent from the left."""
        for start, end, left, right in self.stretches:
            if seconds <= end:
                share = (max(seconds, start) - start) / (end - start) if end > start else 0.0
                return left + share * (right - left)
        return 100.0

    def ticks(self) -> list[tuple[float, float]]:
        """(seconds, percent): the ends of every stretch, and round numbers between those of an unbroken line."""
        first, last = self.stretches[0], self.stretches[-1]
        moments = [first.start, *(stretch.end for stretch in self.stretches)]
        if not self.broken:
            step = _step(last.end - first.start)
            moments += [first.start + at * step for at in range(1, 10) if first.start + at * step < last.end]
        ticks: list[tuple[float, float]] = []
        for seconds, percent in sorted((moment, self.place(moment)) for moment in set(moments)):
            if not ticks or percent - ticks[-1][1] >= NEAR:
                ticks.append((seconds, percent))
        return ticks


def _broken(moments: tuple[float, float, float, float]) -> tuple[Stretch, ...]:
    """Before, gap, after; what is before and after shares the rest by its length, a tenth of the line each at least."""
    before, after = moments[1] - moments[0], moments[3] - moments[2]
    rest = 1 - GAP_SHARE
    least = 0.1 if before and after else 0.0
    share = max(least, min(rest - least, rest * before / (before + after))) if before + after > 0 else 0.0
    middle = share + (GAP_SHARE if before + after > 0 else 1.0)
    edges = (0.0, 100 * share, 100 * middle, 100.0)
    return tuple(
        Stretch(moments[at], moments[at + 1], edges[at], edges[at + 1]) for at in range(3) if edges[at + 1] > edges[at]
    )


def _step(total: float) -> float:
    """A round number that divides `total` into four to ten."""
    step = 10.0**-6
    while total / step > 10:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            step *= factor
            if total / step <= 10:
                break
    return step
