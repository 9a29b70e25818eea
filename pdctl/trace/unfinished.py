"""Answers that may have been cut short: a stream counts as answered when it begins, and its decode's log ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.trace.ledger import TOKENISED, answers
from pdctl.trace.outcomes import GRACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Instance

LONGEST = 330.0  # seconds an answer is taken to stream for at most


def unfinished(around: Sequence[Event], decodes: Iterable[Instance]) -> Mapping[str, float]:
    """Decode → the time since when its answers may still have been under way when its log stopped.

    Its last words are of more running requests than had come without an answer: some answer was a stream.
    """
    found = {}
    for decode in decodes:
        lines = [event for event in around if event.instance == decode.name]
        last = max((at for at, event in enumerate(lines) if event.row.id == "decode-batch"), default=None)
        if decode.clean or decode.last is None or last is None:
            continue
        batch = lines[last]
        if batch.t is None or batch.t < decode.last - GRACE:
            continue
        begun = max((at for at, event in enumerate(lines[:last]) if event.row.id == "ready"), default=0)
        took = sum(int(event.values.get("inputs", "0")) for event in lines[begun:last] if event.row.id == TOKENISED)
        answered = sum(answers(event) for event in lines[begun:last])
        if int(batch.values["running"]) > max(0, took - answered):
            found[decode.name] = decode.last - LONGEST
    return found
