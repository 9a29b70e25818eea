"""How a log begins and how it ends: the lines of each start, the last words, and whether they are those of an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event

# A process says what it was started with, once in its life.
BEGINNINGS = frozenset(
    {
        "server-args",
        "server-args-resolved",
        "router-starting",
        "launched-engine",
        "launched-router",
    }
)
# Somebody told it to end.
ORDERS = frozenset({"sigterm", "shutting-down", "router-stopped", "router-sigterm", "smg-stopped", "uvicorn-stopping"})
CRASHES = frozenset(
    {
        "scheduler-crashed", "child-failed", "sigquit", "dp-controller-crashed", "child-ended", "subprocess-crashed",
        "part-crashed", "watchdog", "pp-store-crashed", "forced-exit", "out-of-memory",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class End:
    """last: stamp of the last line that has one. rows: the last known lines, those of the last start only.

    clean: an order to end stands among them, no crash before it; crashed: a crash does. Neither: the log just stops.
    """

    last: float | None
    clean: bool
    crashed: bool
    rows: tuple[Event, ...]


def end(events: Iterable[Event], last: float | None) -> End:
    rows = _of_last_start(tuple(events))
    first = next((event.row.id for event in rows if event.row.id in ORDERS | CRASHES), "")
    return End(last, first in ORDERS, first in CRASHES, rows)


def _of_last_start(events: Sequence[Event]) -> tuple[Event, ...]:
    starts = [at for at, event in enumerate(events) if event.row.id in BEGINNINGS]
    return tuple(events[starts[-1] :] if starts else events)
