"""How a log begins and how it ends: the lines of each start, the last words, and whether they are those of an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event

ORDERED = frozenset({"-15", "-2"})  # exit codes of a child that was told to end
SOON = 30.0  # seconds after an order to end within which children end of the same order


@dataclass(frozen=True, slots=True)
class End:
    """last: the latest stamp among its last lines. rows: the last known lines, those of the last start only.

    clean: an order to end stands among them, no crash before it; crashed: a crash does. Neither: the log just stops.
    """

    last: float | None
    clean: bool
    crashed: bool
    rows: tuple[Event, ...]


def end(events: Iterable[Event], last: float | None) -> End:
    rows = _of_last_start(tuple(events))
    first = next((event for event in rows if event.proves(Sign.ORDERED_TO_END, Sign.CRASHED)), None)
    clean = first is not None and first.proves(Sign.ORDERED_TO_END)
    return End(last, clean, first is not None and not clean, rows)


def of_the_order(event: Event, order: Event | None) -> bool:
    """Whether a crash line tells of a child that ended of the order to its parent, which came before.

    `kill -- -GROUP`, systemd and Slurm send SIGTERM to every process: SGLang then says "crashed with exit code -15".
    """
    if order is None or (event.t is not None and order.t is not None and event.t > order.t + SOON):
        return False
    return event.proves(Sign.FOLLOWED_CHILD) or (event.proves(Sign.CHILD_ENDED) and event.values.get("code") in ORDERED)


def _of_last_start(events: Sequence[Event]) -> tuple[Event, ...]:
    starts = [at for at, event in enumerate(events) if event.proves(Sign.STARTED)]
    return tuple(events[starts[-1] :] if starts else events)
