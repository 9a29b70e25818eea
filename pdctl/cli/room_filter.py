"""Which rooms of a list are meant, and their order."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.trace.room import Summary


class Order(str, Enum):
    """The latest, longest, furthest last; `--reverse` turns it around."""

    STARTED = "started"
    DURATION = "duration"
    PHASE = "phase"
    OUTCOME = "outcome"
    PREFILL = "prefill"
    DECODE = "decode"
    CAUSE = "cause"
    ROOM = "room"


class Field(NamedTuple):
    """`text` is what a filter compares, `key` what rooms are sorted by; what is not known comes first."""

    text: Callable[[Summary], str]
    key: Callable[[Summary], object]


FIELDS: dict[str, Field] = {
    "room": Field(lambda room: str(room.room), lambda room: room.room),
    "started": Field(lambda room: str(room.first_seen or ""), lambda room: room.first_seen or 0.0),
    "prefill": Field(lambda room: room.prefill or "", lambda room: room.prefill or ""),
    "decode": Field(lambda room: room.decode or "", lambda room: room.decode or ""),
    "phase": Field(
        lambda room: room.phase_reached.value if room.phase_reached else "",
        lambda room: room.phase_reached.order if room.phase_reached else -1,
    ),
    "duration": Field(
        lambda room: str(room.seconds or ""), lambda room: -1.0 if room.seconds is None else room.seconds
    ),
    "outcome": Field(lambda room: room.outcome.value, lambda room: room.outcome.value),
    "cause": Field(lambda room: room.code, lambda room: room.code),
}
FILTERS = ("room", "prefill", "decode", "phase", "outcome", "cause")


def matcher(filters: Sequence[str], outcomes: Sequence[str], least: float | None) -> Callable[[Summary], bool]:
    """Different filters must all hold; of several outcomes one."""
    from fnmatch import fnmatchcase

    from pdctl.trace.room import Outcome

    known = [each.value for each in Outcome]
    for outcome in outcomes:
        if outcome not in known:
            raise UsageError(f"--outcome {outcome}: no room ends like that", f"one of {', '.join(known)}")
    pairs = [_pair(each) for each in filters]

    def keep(room: Summary) -> bool:
        long = least is None or (room.seconds is not None and room.seconds >= least)
        ended = not outcomes or room.outcome.value in outcomes
        return long and ended and all(fnmatchcase(FIELDS[key].text(room), value) for key, value in pairs)

    return keep


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in FILTERS:
        raise UsageError(f"--filter {text}: no such field", f"write KEY=VALUE with one of {', '.join(FILTERS)}")
    return key, value
