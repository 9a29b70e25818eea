"""Answers that may have been cut short: a stream counts as answered when it begins, whatever becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace.ledger import answers, tokenised

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Instance

LONGEST = 330.0  # seconds an answer is taken to stream for at most


class Doubt(NamedTuple):
    """An answer of a room of `decode` whose lines reach into [since, until] may be the one that was cut."""

    decode: str
    since: float
    until: float


def doubts(around: Sequence[Event], decodes: Iterable[Instance]) -> tuple[Doubt, ...]:
    """Where some answer was cut and no line tells which."""
    return tuple(doubt for decode in decodes for doubt in _doubts(around, decode))


def _doubts(around: Sequence[Event], decode: Instance) -> Iterator[Doubt]:
    lines = [event for event in around if event.instance == decode.name]
    known = {event.rid for event in lines if event.rid and event.room}
    for event in lines:
        if event.proves(Sign.REQUEST_CUT) and event.rid not in known and event.t is not None:
            yield Doubt(decode.name, event.t - LONGEST, event.t + 1.0)
    if _stopped_running(lines, decode) and decode.last is not None:
        yield Doubt(decode.name, decode.last - LONGEST, decode.last + 1.0)


def _stopped_running(lines: Sequence[Event], decode: Instance) -> bool:
    """Its last words are of more running requests than had come without an answer: some answer was a stream."""
    last = max((at for at, event in enumerate(lines) if event.proves(Sign.RUNNING)), default=None)
    if decode.clean or last is None:
        return False
    batch = lines[last]
    if batch.t is None or not decode.ends_behind(batch.t):
        return False
    begun = max((at for at, event in enumerate(lines[:last]) if event.proves(Sign.READY)), default=0)
    took = sum(tokenised(event) for event in lines[begun:last])
    answered = sum(answers(event) for event in lines[begun:last])
    return (numerals.whole(batch.values["running"]) or 0) > max(0, took - answered)
