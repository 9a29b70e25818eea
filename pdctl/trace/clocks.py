"""How far the clocks of different hosts are apart, from pairs of lines of which one cannot come before the other."""

from __future__ import annotations

from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sign import Phase, Sign
from pdctl.trace.room import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.room import Duration

# Lines of one side, and of the other that come at once when its message has.
MESSAGES = (
    (Sign.PAGE_LIST_SENDS, Sign.PAGE_LIST_ARRIVES),
    (Sign.ABORT_SENDS, Sign.ABORT_ARRIVES),
)
WHOLE = 1.0  # seconds: the step of SGLang's stamps
NEAR = 2.0  # seconds: what two stamps of whole seconds and a short way can differ by on one clock


class Common:
    """The one clock a room is told on: offsets of hosts taken out, and no finer than the coarsest of its lines.

    A stamp of whole seconds is the second's beginning. Next to milliseconds it would seem to come before what it
    followed; so where one line of a room has whole seconds, all of them are counted in whole seconds.
    """

    def __init__(self, lines: Iterable[Event], shifts: Mapping[str, float]) -> None:
        self._shifts = shifts
        stamped = [event for event in lines if event.t is not None]
        self.step_s = max((min(event.uncertainty_s, WHOLE) for event in stamped), default=0.0)
        times = [t for event in stamped if (t := self._time(event)) is not None]
        self.began = min(times, default=None)
        self.ended = max(times, default=None)

    def since_began(self, event: Event) -> float | None:
        t = self._time(event)
        return None if t is None or self.began is None else t - self.began

    def exactly(self, event: Event) -> float | None:
        """The same on the line's own clock: for what is measured back from it."""
        if event.t is None or self.began is None:
            return None
        return event.t - self._shifts.get(event.instance, 0.0) - self.began

    def started(self, measured: Iterable[Duration]) -> tuple[Duration, ...]:
        """With how well their starts are known: entry_time tells milliseconds, but not since when they count."""
        return tuple(replace(one, start_uncertainty_s=self.step_s) for one in measured)

    def _time(self, event: Event) -> float | None:
        return None if event.t is None else self._floor(event.t - self._shifts.get(event.instance, 0.0))

    def _floor(self, seconds: float | None) -> float | None:
        return seconds if seconds is None or self.step_s < WHOLE else float(floor(seconds + 1e-6))


class Pair(NamedTuple):
    """`cause` was written before `effect`. tight: nothing but the way between two hosts lies between them."""

    cause: Event
    effect: Event
    tight: bool


def offsets(events: Sequence[Event], lanes: Sequence[str]) -> tuple[Mapping[str, float], tuple[Clock, ...]]:
    """instance → seconds to subtract from its stamps; and what is to be said about it.

    Only what cannot be tells clocks apart: an effect stamped before its cause, or a message under way for longer than
    any network needs. What two stamps of whole seconds explain is no distance.
    """
    shifts: dict[str, float] = {}
    said: list[Clock] = []
    pairs = list(_pairs(events))
    for name in lanes:
        mine = [pair for pair in pairs if name in (pair.cause.instance, pair.effect.instance)]
        found = _shift(name, mine, shifts)
        if found is None:
            shifts.setdefault(name, 0.0)
            continue
        shift, coarse, pair = found
        shifts[name] = shift if abs(shift) > NEAR else 0.0
        if abs(shift) > NEAR:
            why = f"`{pair.cause.row.id}` of {pair.cause.instance} comes before `{pair.effect.row.id}` of it"
            said.append(Clock(name, shift, coarse, why))
    return shifts, tuple(said)


def _shift(name: str, pairs: Iterable[Pair], known: Mapping[str, float]) -> tuple[float, float, Pair] | None:
    """How far `name` is ahead of the lanes already placed; the nearest pair counts."""
    best: tuple[float, float, Pair] | None = None
    for pair in pairs:
        cause, effect, tight = pair
        other = effect if cause.instance == name else cause
        if other.instance not in known or other.instance == name or cause.t is None or effect.t is None:
            continue
        away = effect.t - cause.t
        if away > 0 and not tight:
            continue
        shift = (away if effect.instance == name else -away) + known[other.instance]
        if best is None or abs(shift) < abs(best[0]):
            best = (shift, cause.uncertainty_s + effect.uncertainty_s, pair)
    return best


def _pairs(events: Sequence[Event]) -> Iterable[Pair]:
    """Page list sent → arrived, abort sent → received; a dispatch → whatever an engine writes about the room."""
    stamped = [event for event in events if event.t is not None]
    for cause, effect in MESSAGES:
        sent = [event for event in stamped if event.proves(cause)]
        heard = [event for event in stamped if event.proves(effect)]
        yield from (Pair(one, other, True) for one in sent[:1] for other in heard[:1])
    dispatched = [event for event in stamped if event.role == "router" and event.row.phase is Phase.DISPATCHED]
    firsts: dict[str, Event] = {}
    for event in stamped:
        if event.role in ("prefill", "decode"):
            firsts.setdefault(event.instance, event)
    for other in firsts.values():
        yield from (Pair(one, other, other.proves(Sign.REQUEST_ARRIVED)) for one in dispatched[:1])
