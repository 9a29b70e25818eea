"""Known causes in the logs of a run: the signatures trace-room reads, counted by instance and code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.doctor.request import Progress
from pdctl.engines.sign import Sign
from pdctl.fleet.facts import LogLine
from pdctl.logs.starts_and_ends import is_ordered_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pdctl.logs.event import Event

CUT = 300  # characters of a line that are kept
CANARY = "pdctl-canary-"  # begins the request ids of fleet/legs.py


def read(
    paths: Sequence[str],
    names: Mapping[str, str],
    progress: Callable[[Progress], None],
    since: float | None = None,
) -> tuple[tuple[LogLine, ...], tuple[str, ...]]:
    """The lines since then that name a cause, and the instances whose logs were read.

    Raises UsageError for a path that cannot be read.
    """
    from pdctl.logs.library import Library  # late: it compiles every dialect
    from pdctl.logs.source import open_logs

    logs = open_logs(paths, names=names)
    progress(Progress("logs", 0, len(logs)))
    events = Library(logs, since=since).said(lambda row: bool(row.cause) or Sign.ORDERED_TO_END in row.proves)
    # A line without a time, of a traceback say, may be as old as any.
    found = counted(event for event in events if since is None or event.t is not None)
    progress(Progress("logs", len(logs), len(logs)))
    return found, tuple(log.instance for log in logs)


def counted(events: Iterable[Event]) -> tuple[LogLine, ...]:
    """One line per instance and code: the first, with how many there were.

    Echoes name effects and are left out; so are what doctor's own canaries left behind, and children that ended of the
    order to their parent.
    """
    kept: dict[tuple[str, str], LogLine] = {}
    orders: dict[str, Event] = {}
    for event in events:
        if event.proves(Sign.ORDERED_TO_END):
            orders[event.instance] = event
        if not event.row.cause or event.row.echo or CANARY in event.text:
            continue
        if is_ordered_end(event, orders.get(event.instance)):
            continue
        key = (event.instance, event.row.cause)
        first = kept.get(key)
        if first is not None:
            kept[key] = replace(first, count=first.count + 1, room=first.room if first.room is not None else event.room)
        else:
            text = event.text.strip()[:CUT]
            kept[key] = LogLine(event.instance, event.row.cause, str(event.place), text, event.room)
    return tuple(kept.values())
