"""How long each part of a room's life took, as its lines tell: ReqTimeStats of every release, our steps, time-outs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Phase, Sign
from pdctl.trace.room import Duration
from pdctl.trace.story import waited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pdctl.logs.event import Event
    from pdctl.trace.attempts import Attempt

# `name=1.23ms` of sglang 0.5.3 and 0.5.13+, `name(1.23ms)` inside 0.5.8's sums.
_TIME = re.compile(r"(\w+)(?:=|\()([\d.]+)ms")
_SPEED = re.compile(r"transfer_speed=([\d.]+) ?GB/s")
_TOTAL = re.compile(r"transfer_total=([\d.]+) ?MB")
_ENTRY = re.compile(r"entry_time=([\d.]+)")
PREFILL = {
    "bootstrap_duration": "bootstrap wait", "bootstrap_queue_duration": "bootstrap wait",
    "queue_duration": "queue", "forward_duration": "prefill forward", "transfer_duration": "transfer",
}  # fmt: skip
DECODE = {
    "prealloc_duration": "prealloc", "prealloc_queue_duration": "prealloc", "bootstrap_duration": "handshake",
    "alloc_wait_duration": "prealloc", "transfer_duration": "transfer", "queue_duration": "decode queue",
    "forward_duration": "decode",
}  # fmt: skip


def durations(events: Iterable[Event], since_began: Callable[[Event], float | None]) -> tuple[Duration, ...]:
    """In the order of the room's lines. since_began: a line's time since the room began, on the common clock."""
    found: list[Duration] = []
    for event in events:
        at = since_began(event)
        if event.proves(Sign.PREFILL_TIMES) or event.proves(Sign.DECODE_TIMES):
            found += _times(event, at)
        elif event.row.phase is Phase.TIMED_OUT and waited(event):
            name = "bootstrap wait" if event.role == "prefill" else "transfer wait"
            found.append(_duration(event, name, waited(event), at))
        elif event.row.measures is not None:
            measure = event.row.measures
            seconds = numerals.real(event.values.get(measure.value))
            if seconds is not None:
                found.append(_duration(event, measure.stretch, seconds * measure.unit, at))
    return _once(found)


def _once(found: Iterable[Duration]) -> tuple[Duration, ...]:
    """Several lines measure the same stretch: the one that also tells bytes is kept, else the first."""
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


def moved(event: Event) -> tuple[float, float] | None:
    """Bytes and seconds of the transfer a line of the room measures, from its first byte to its last."""
    if event.proves(Sign.PREFILL_TIMES):
        text = event.values.get("times", "")
        speed, total = numerals.real(_group(_SPEED, text)), numerals.real(_group(_TOTAL, text))
        return (total * 1e6, total / 1000 / speed) if speed and total else None
    size, seconds = numerals.real(event.values.get("bytes")), numerals.real(event.values.get("seconds"))
    return (size, seconds) if event.proves(Sign.TRANSFER_MEASURED) and size and seconds else None


def _times(event: Event, at: float | None) -> Iterator[Duration]:
    """One after the other from the moment the request came in; releases before 0.5.13 do not write that down."""
    text = event.values.get("times", "")
    names = PREFILL if event.proves(Sign.PREFILL_TIMES) else DECODE
    entry = numerals.real(_group(_ENTRY, text))
    # entry_time is on the clock of the line's own stamp, so it moves with it.
    start = None if entry is None or at is None or event.t is None else at + (entry - event.t)
    speed, total = numerals.real(_group(_SPEED, text)), numerals.real(_group(_TOTAL, text))
    for field, length in _TIME.findall(text):
        milliseconds = numerals.real(length)
        if field not in names or milliseconds is None:
            continue
        seconds = milliseconds / 1000
        moved = names[field] == "transfer" and event.role == "prefill" and bool(total)
        yield Duration(
            names[field], event.instance, start, seconds, 0.0,
            int(total * 1e6) if moved and total else None, speed if moved and speed else None,
        )  # fmt: skip
        start = None if start is None else start + seconds
    if total and "transfer_duration" not in text and speed:
        yield Duration("transfer", event.instance, None, total / 1000 / speed, 0.0, int(total * 1e6), speed)


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


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def at_router(attempts: Iterable[Attempt], began: float) -> tuple[Duration, ...]:
    """The one attempt a room was, from dispatch to answer."""
    only = [attempt for attempt in attempts if attempt.end is not None and attempt.listed]
    if len(only) != 1:
        return ()
    one = only[0]
    assert one.end is not None
    return (Duration("attempt", one.router, one.start - began, one.end - one.start, 1.0),)
