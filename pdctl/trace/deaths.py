"""Which instances were gone, since when, and of what. A log that merely stops proves nothing: it must be missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.row import Level
from pdctl.engines.sign import Sign
from pdctl.logs.starts_and_ends import is_ordered_end
from pdctl.trace.addresses import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment, Instance

# Codes of a process that ended itself, and of what it can have fallen over: its line stands in the traceback.
CRASH = "PD709"
MISMATCH = frozenset({"PD302", "PD303", "PD304", "PD306", "PD308", "PD325", "PD712"})
# Lines of others that say this one does not answer any more, by the value that holds its address.
MISSED = {Sign.DECODE_LEG_BROKE: "decode", Sign.PREFILL_LEG_BROKE: "prefill", Sign.WORKER_MISSED: "url"}
NOBODY = ("refused", "no connection", "reset")  # a worker that answers badly is there
CLOSED = ("refused", "reset", "disconnected", "closed the connection")  # by the kernel, for a process that is gone
TRACEBACK = 1 << 16  # bytes
QUIET = 3.0  # seconds others must have gone on for a log to have stopped before them


class Death(NamedTuple):
    """at: the last sign of life. of: the line that tells why, when one does. evidence: the lines that show it."""

    instance: Instance
    at: float
    of: Event | None
    evidence: tuple[Event, ...]


def death(
    instance: Instance, deployment: Deployment, around: Sequence[Event], until: float | None = None
) -> Death | None:
    """None: it lived to the end of its log, was told to stop, or nothing shows that it did not.

    until: of several generations that were killed, the last one before that counts; the first one without it.
    """
    killed = [event for event in around if event.instance == instance.name and event.proves(Sign.DIED)]
    before = [event for event in killed if until is not None and event.t is not None and event.t <= until + 1.0]
    if killed:
        first = before[-1] if before else killed[0]
        at = first.t if first.t is not None else instance.last
        return None if at is None else Death(instance, at, None, (first,))
    crash = unordered(instance.final)
    if crash:
        first = crash[0]
        reasons = [event for event in (*instance.final, *around) if tells(event, first)]
        at = first.t if first.t is not None else instance.last
        return None if at is None else Death(instance, at, reasons[0] if reasons else None, (*reasons[:1], first))
    if instance.clean or instance.last is None:
        return None
    others = [one.last for one in deployment.instances.values() if one is not instance and one.last is not None]
    if not others or max(others) < instance.last + QUIET:
        return None
    missed = [event for event in around if _missed(event, instance, deployment)]
    # Whoever launched it writes its end, a moment later; one that is stopped takes connections and closes none.
    if instance.watched and not any(word in event.text for event in missed for word in CLOSED):
        return None
    if not missed:
        return None
    return Death(instance, instance.last, None, (*instance.final[-1:], missed[0]))


def shows(event: Event, death: Death) -> str:
    """What one of its lines of evidence says."""
    if event is death.of:
        return "what it fell over"
    if event.proves(Sign.DIED):
        return "its launcher saw it end"
    if crashes(event):
        return "the crash"
    if event.instance == death.instance.name:
        return "its last line"
    return f"{event.instance} found nobody at {death.instance.name}"


def crashes(event: Event) -> bool:
    return event.row.cause == CRASH and not event.proves(Sign.ROOM_USED_UP)


def unordered(events: Iterable[Event]) -> list[Event]:
    """The crash lines among an instance's, without those of an order to end."""
    found: list[Event] = []
    order: Event | None = None
    for event in events:
        if event.proves(Sign.ORDERED_TO_END):
            order = event
        elif crashes(event) and not is_ordered_end(event, order):
            found.append(event)
    return found


def mismatches(event: Event) -> bool:
    """What prefill and decode compared and found different, when that was the end of it; a warning is not."""
    return event.row.cause in MISMATCH and event.row.level in (Level.ERROR, Level.CRITICAL)


def tells(event: Event, crash: Event) -> bool:
    """The line of a traceback that says what the crash was of."""
    if not (mismatches(event) or event.proves(Sign.ROOM_USED_UP)) or event.place.file != crash.place.file:
        return False
    return abs(event.place.offset - crash.place.offset) < TRACEBACK


def _missed(event: Event, instance: Instance, deployment: Deployment) -> bool:
    """Somebody looked for it where it listens, after its last line, and found nobody."""
    if event.t is None or instance.last is None or event.t < instance.last:
        return False
    if event.proves(Sign.WORKER_UNWELL) and not any(word in event.text for word in NOBODY):
        return False
    return misses(event, instance, deployment)


def missed_url(event: Event) -> str | None:
    """The URL at which the line says nobody answers, "" when it does not name it; None for any other line."""
    return next((event.values.get(name, "") for sign, name in MISSED.items() if event.proves(sign)), None)


def misses(event: Event, instance: Instance, deployment: Deployment) -> bool:
    """The line says that this instance does not answer at the address where it listens."""
    url = missed_url(event)
    if url is not None:
        return _same(deployment.at_url(url), instance)
    if event.proves(Sign.BOOTSTRAP_MISSED):
        address = parse(event.values.get("addr", ""))
    elif event.proves(Sign.BOOTSTRAP_REFUSED) and "refused" in event.text:
        address = parse(f"{event.values.get('host', '')}:{event.values.get('port', '')}")
    else:
        return False
    return address is not None and _same(deployment.bootstrap_owner(address), instance)


def _same(found: Instance | None, wanted: Instance) -> bool:
    return found is not None and found.name == wanted.name


def deaths(deployment: Deployment, around: Iterable[Event], until: float | None = None) -> dict[str, Death]:
    lines = tuple(around)
    found = {
        name: death(one, deployment, lines, until) for name, one in deployment.instances.items() if one.role != "router"
    }
    return {name: one for name, one in found.items() if one is not None}
