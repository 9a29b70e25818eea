"""A room on one clock: clock offsets of hosts, how long each part took, the longest stretch without progress."""

from __future__ import annotations

from itertools import pairwise
from math import floor
from typing import TYPE_CHECKING

from pdctl.engines import message_details, numerals
from pdctl.engines.base import Phase, Sign
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.room import ClockOffset, Duration, LongestGap
from pdctl.trace.room_events import seconds_waited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.room import RoomStep
    from pdctl.trace.router_attempts import RouterAttempt

# A line about a message that one side sends, and the line the other side writes as soon as it arrives.
MESSAGES = (
    (Sign.PAGE_LIST_SENDS, Sign.PAGE_LIST_ARRIVES),
    (Sign.ABORT_SENDS, Sign.ABORT_ARRIVES),
)
WHOLE_SECOND = 1.0  # seconds: the resolution of SGLang's stamps
SAME_CLOCK = 2.0  # seconds: what two whole-second stamps and a short network delay can differ by on one clock
SHORTEST = 2.0  # seconds; two clocks of whole seconds cannot show less
GAP_TEXT = 60  # characters of a line that stand for it


class RoomClock:
    """The common clock of a room: corrected for hosts' clock offsets, and no finer than the coarsest of its lines.

    A whole-second stamp is the beginning of its second. Next to milliseconds it would seem to come before what it
    followed, so if one line of a room has whole seconds, all of them are counted in whole seconds.
    """

    def __init__(self, lines: Iterable[Event], shifts: Mapping[str, float]) -> None:
        self._shifts = shifts
        stamped = [event for event in lines if event.t is not None]
        self.step_s = max((min(event.uncertainty_s, WHOLE_SECOND) for event in stamped), default=0.0)
        times = [t for event in stamped if (t := self._corrected_time(event)) is not None]
        self.began = min(times, default=None)
        self.ended = max(times, default=None)

    def since_began(self, event: Event) -> float | None:
        t = self._corrected_time(event)
        return None if t is None or self.began is None else t - self.began

    def exactly(self, event: Event) -> float | None:
        """Seconds since the room began, at the line's own resolution: for durations measured back from the line."""
        if event.t is None or self.began is None:
            return None
        return event.t - self._shifts.get(event.instance, 0.0) - self.began

    def started(self, measured: Iterable[Duration]) -> tuple[Duration, ...]:
        """Add the uncertainty of their starts: entry_time has milliseconds, the room's beginning may not."""
        return tuple(one._replace(start_uncertainty_s=self.step_s) for one in measured)

    def _corrected_time(self, event: Event) -> float | None:
        return None if event.t is None else self._floor(event.t - self._shifts.get(event.instance, 0.0))

    def _floor(self, seconds: float | None) -> float | None:
        return seconds if seconds is None or self.step_s < WHOLE_SECOND else float(floor(seconds + 1e-6))


class CauseAndEffect(NamedTuple):
    """cause was written before effect. tight: only the network delay between two hosts lies between them."""

    cause: Event
    effect: Event
    tight: bool


def offsets(events: Sequence[Event], lanes: Sequence[str]) -> tuple[Mapping[str, float], tuple[ClockOffset, ...]]:
    """instance → seconds to subtract from its stamps; and the offsets to report.

    Clocks differ only where the stamps are otherwise impossible: an effect before its cause, or a message that takes
    longer than any network needs. A difference that two whole-second stamps can explain is no offset.
    """
    shifts: dict[str, float] = {}
    said: list[ClockOffset] = []
    pairs = list(_pairs(events))
    for name in lanes:
        mine = [pair for pair in pairs if name in (pair.cause.instance, pair.effect.instance)]
        found = _shift(name, mine, shifts)
        if found is None:
            shifts.setdefault(name, 0.0)
            continue
        shift, coarse, pair = found
        shifts[name] = shift if abs(shift) > SAME_CLOCK else 0.0
        if abs(shift) > SAME_CLOCK:
            why = f"`{pair.cause.row.id}` of {pair.cause.instance} comes before `{pair.effect.row.id}` of it"
            said.append(ClockOffset(name, shift, coarse, why))
    return shifts, tuple(said)


def _shift(
    name: str, pairs: Iterable[CauseAndEffect], known: Mapping[str, float]
) -> tuple[float, float, CauseAndEffect] | None:
    """Seconds by which `name` is ahead of the placed lanes, by the pair with the least shift; uncertainty; the pair."""
    best: tuple[float, float, CauseAndEffect] | None = None
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


def _pairs(events: Sequence[Event]) -> Iterable[CauseAndEffect]:
    """Page list sent → arrived; abort sent → received; dispatch → the first line of each engine about the room."""
    stamped = [event for event in events if event.t is not None]
    for cause, effect in MESSAGES:
        sent = [event for event in stamped if event.proves(cause)]
        heard = [event for event in stamped if event.proves(effect)]
        yield from (CauseAndEffect(one, other, True) for one in sent[:1] for other in heard[:1])
    dispatched = [event for event in stamped if event.role == "router" and event.row.phase is Phase.DISPATCHED]
    firsts: dict[str, Event] = {}
    for event in stamped:
        if event.role in ("prefill", "decode"):
            firsts.setdefault(event.instance, event)
    for other in firsts.values():
        yield from (CauseAndEffect(one, other, other.proves(Sign.REQUEST_ARRIVED)) for one in dispatched[:1])


def durations(events: Iterable[Event], since_began: Callable[[Event], float | None]) -> tuple[Duration, ...]:
    """In the order of the room's lines. since_began: a line's seconds since the room began, on the common clock."""
    found: list[Duration] = []
    for event in events:
        at = since_began(event)
        if event.proves(Sign.PREFILL_TIMES) or event.proves(Sign.DECODE_TIMES):
            found += _times(event, at)
        elif event.row.phase is Phase.TIMED_OUT and seconds_waited(event):
            name = "bootstrap wait" if event.role == "prefill" else "transfer wait"
            found.append(_duration(event, name, seconds_waited(event), at))
        elif event.row.measures is not None:
            measure = event.row.measures
            seconds = numerals.real(event.values.get(measure.value))
            if seconds is not None:
                found.append(_duration(event, measure.stretch, seconds * measure.unit, at))
    return _without_repeats(found)


def _without_repeats(found: Iterable[Duration]) -> tuple[Duration, ...]:
    """Keep one of several measurements of the same stretch: the one that also has bytes, else the first."""
    kept: list[Duration] = []
    for one in found:
        same = next((at for at, other in enumerate(kept) if _alike(one, other)), None)
        if same is None:
            kept.append(one)
        elif one.bytes and not kept[same].bytes:
            kept[same] = one
    return tuple(kept)


def _alike(one: Duration, other: Duration) -> bool:
    apart = abs(one.seconds - other.seconds)
    return (one.name, one.instance) == (other.name, other.instance) and apart <= max(0.001, 0.01 * one.seconds)


def transfers_measured(events: Iterable[Event]) -> list[tuple[float, float, Event]]:
    """Bytes and seconds of the room's transfer, by each of the prefill's lines that measure it and no computing.

    The prefill's last line about the request counts only the time in which bytes moved; the others are asked without
    it. A time from the first chunk to the last includes the computing of all but the first.
    """
    lines = list(events)
    told = [
        (times.bytes, times.transfer_seconds, event)
        for event in lines
        if event.proves(Sign.PREFILL_TIMES)
        for times in (message_details.time_stats(event.values.get("times", ""), "prefill"),)
        if times.bytes and times.transfer_seconds
    ]
    if told:
        return told
    sized = [
        (size, seconds, event)
        for event in lines
        if event.proves(Sign.TRANSFER_MEASURED)
        if (size := numerals.real(event.values.get("bytes"))) and (seconds := numerals.real(event.values["seconds"]))
    ]
    chunks = [one for one in sized if not one[-1].proves(Sign.TRANSFER_DONE)]
    total, largest = sum(size for size, _, _ in chunks), max((size for size, _, _ in chunks), default=0.0)
    in_one = (one for one in sized if one[-1].proves(Sign.TRANSFER_DONE))
    whole = [one for one in in_one if one[-1].values.get("pages") == "1" or one[0] <= largest]
    # Chunks share the link: while one is under way, all may move.
    return [*whole, *((total, seconds, event) for _, seconds, event in chunks)]


def _times(event: Event, at: float | None) -> Iterator[Duration]:
    """One after the other from the moment the request came in, if the line says when that was."""
    role = "prefill" if event.proves(Sign.PREFILL_TIMES) else "decode"
    times = message_details.time_stats(event.values.get("times", ""), role)
    # The entry is on the clock of the line's own stamp, so it moves with it.
    start = None if times.entry is None or at is None or event.t is None else at + (times.entry - event.t)
    size = None if times.bytes is None else int(times.bytes)
    for name, seconds in times.parts:
        measured = name == message_details.TRANSFER and event.role == "prefill" and size is not None
        told = (size, times.speed) if measured else (None, None)
        yield Duration(name, event.instance, start, seconds, 0.0, *told)
        start = None if start is None else start + seconds
    if times.transfer_seconds and message_details.TRANSFER not in dict(times.parts):
        yield Duration(message_details.TRANSFER, event.instance, None, times.transfer_seconds, 0.0, size, times.speed)


def _duration(event: Event, name: str, seconds: float, at: float | None) -> Duration:
    size = numerals.real(event.values.get("bytes"))
    speed = size / seconds / 1e9 if size and seconds else None
    start = None if at is None else at - seconds
    if start is not None and -event.uncertainty_s < start < 0.0:
        start = 0.0  # the stamp is that much too early
    exact = event.row.phase is not Phase.TIMED_OUT
    return Duration(
        name, event.instance, start, seconds, 0.0 if exact else event.uncertainty_s,
        int(size) if size else None, speed,
    )  # fmt: skip


def at_router(attempts: Iterable[RouterAttempt], began: float) -> tuple[Duration, ...]:
    """The duration of the room's router attempt, from dispatch to answer; () unless there is exactly one."""
    only = [attempt for attempt in attempts if attempt.end is not None and attempt.listed]
    if len(only) != 1:
        return ()
    one = only[0]
    assert one.end is not None
    return (Duration("attempt", one.router, one.start - began, one.end - one.start, 1.0),)


def longest_gap(steps: Sequence[RoomStep], measured: Sequence[Duration], code: str) -> LongestGap | None:
    """The longest time between two consecutive lines, or the wait before the first line that a timeout line reports."""
    timed = sorted((step for step in steps if step.delta_s is not None), key=lambda step: step.delta_s or 0.0)
    found: list[LongestGap] = []
    for before, after in pairwise(timed):
        assert before.delta_s is not None
        assert after.delta_s is not None
        seconds = after.delta_s - before.delta_s
        coarse = before.uncertainty_s + after.uncertainty_s
        found.append(
            LongestGap(
                before.delta_s,
                after.delta_s,
                seconds,
                coarse,
                _with_instance(before),
                _with_instance(after),
                after.instance,
                code,
            )
        )
    for one in measured:
        if one.start is not None and one.start < -SHORTEST and timed:
            text = f"its arrival at {one.instance} (no line shows it)"
            end = one.start + one.seconds
            found.append(
                LongestGap(
                    one.start, end, one.seconds, one.uncertainty_s, text, _with_instance(timed[0]), one.instance, code
                )
            )
    longest = max(found, key=lambda one: one.seconds, default=None)
    return longest if longest is not None and longest.seconds >= SHORTEST else None


def _with_instance(step: RoomStep) -> str:
    text = step.text.strip()
    return f"{step.instance} `{text[:GAP_TEXT]}{'…' if len(text) > GAP_TEXT else ''}`"
