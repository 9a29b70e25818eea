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
# A parent's word of a child's end, its exit code, and the signal with which the parent ends itself then.
CHILD, ORDERED, FOLLOWS = frozenset({"subprocess-crashed", "child-ended"}), frozenset({"-15", "-2"}), "sigquit"
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
    first = next((event.row.id for event in rows if event.row.id in ORDERS | CRASHES), "")
    return End(last, first in ORDERS, first in CRASHES, rows)


def of_the_order(event: Event, order: Event | None) -> bool:
    """Whether a crash line tells of a child that ended of the order to its parent, which came before.

    `kill -- -GROUP`, systemd and Slurm send SIGTERM to every process: SGLang then says "crashed with exit code -15".
    """
    if order is None or (event.t is not None and order.t is not None and event.t > order.t + SOON):
        return False
    return event.row.id == FOLLOWS or (event.row.id in CHILD and event.values.get("code") in ORDERED)


def _of_last_start(events: Sequence[Event]) -> tuple[Event, ...]:
    starts = [at for at, event in enumerate(events) if event.row.id in BEGINNINGS]
    return tuple(events[starts[-1] :] if starts else events)
