"""The longest stretch in which the room made no progress."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.trace.room import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.trace.room import Duration, Step

SHORTEST = 2.0  # seconds; less than that two clocks of whole seconds cannot show
TEXT = 60  # letters of a line that name it


def gap(steps: Sequence[Step], measured: Sequence[Duration], code: str) -> Gap | None:
    """Between two lines that follow each other, or what a time-out says it waited before the first line."""
    timed = sorted((step for step in steps if step.delta_s is not None), key=lambda step: step.delta_s or 0.0)
    found: list[Gap] = []
    for before, after in pairwise(timed):
        assert before.delta_s is not None
        assert after.delta_s is not None
        seconds = after.delta_s - before.delta_s
        coarse = before.uncertainty_s + after.uncertainty_s
        found.append(
            Gap(before.delta_s, after.delta_s, seconds, coarse, _named(before), _named(after), after.instance, code)
        )
    for one in measured:
        if one.start is not None and one.start < -SHORTEST and timed:
            text = f"its arrival at {one.instance} (no line shows it)"
            end = one.start + one.seconds
            found.append(
                Gap(one.start, end, one.seconds, one.uncertainty_s, text, _named(timed[0]), one.instance, code)
            )
    longest = max(found, key=lambda one: one.seconds, default=None)
    return longest if longest is not None and longest.seconds >= SHORTEST else None


def _named(step: Step) -> str:
    text = step.text.strip()
    return f"{step.instance} `{text[:TEXT]}{'…' if len(text) > TEXT else ''}`"
