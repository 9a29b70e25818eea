"""What no line says about a room, and the flag that would have written the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.adapters import adapter
from pdctl.engines.row import Level
from pdctl.engines.sign import Phase, Sign
from pdctl.trace import signs
from pdctl.trace.case import NEAR
from pdctl.trace.room import Missing, Outcome
from pdctl.trace.routing import PLACEHOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.trace.case import Case
    from pdctl.trace.deployment import Instance

LOG_REQUESTS = "--log-requests --log-requests-level 0"
TIME_STATS = "--enable-request-time-stats-logging"
DEBUG = "--log-level debug"
NO_LOG = "give its log to trace-room as well"


def missing(case: Case, outcome: Outcome, fix: str) -> tuple[Missing, ...]:
    """One entry for each thing that stayed unknown, in the order a room meets them."""
    return () if case.warm_up else tuple(dict.fromkeys(_missing(case, outcome, fix)))


def _missing(case: Case, outcome: Outcome, fix: str) -> Iterator[Missing]:
    who, house = case.who, case.deployment
    for role, instances in (("prefill", house.prefills), ("decode", house.decodes)):
        if not instances:
            yield Missing(f"no {role}'s log is here", NO_LOG)
    if who.requested is None or who.requested.by_elimination:
        yield from _requested(case)
    if who.contacted is None and not _nobody(case):
        yield Missing("which prefill got the decode's page list", _contact_flag(case))
    if who.decode is None and house.decodes:
        quiet = [one for one in house.decodes if not one.identity.log_requests]
        if quiet:
            yield Missing("which decode had the room", f"{LOG_REQUESTS} on {_names(quiet)}")
        else:
            yield Missing("which decode had the room: none of them logged it", "give the logs of all decodes")
    timed = next((event for event in case.story.by("decode") if event.proves(Sign.DECODE_TIMES)), None)
    if PLACEHOLDER in fix:
        yield Missing("the bootstrap ports of the prefills", "give their logs from the start (server_args=…)")
    if outcome in (Outcome.UNKNOWN, Outcome.INCOMPLETE) and timed is not None:
        left = f"how the room ended: {timed.instance} had done its part and logged no answer, as for a client that left"
        yield Missing(left, "read the log of the router, or ask the client")
    elif outcome in (Outcome.UNKNOWN, Outcome.INCOMPLETE):
        flag = f"{TIME_STATS} on {_names((*house.prefills, *house.decodes))}"
        yield Missing("how the room ended: a room that goes well leaves no line", flag)


def _requested(case: Case) -> Iterator[Missing]:
    house = case.deployment
    if case.who.url is not None and house.at_url(case.who.url) is None:
        yield Missing(f"the router sent the request to {case.who.url}, which none of these logs is", NO_LOG)
        return
    quiet = [one for one in house.prefills if not one.identity.log_requests]
    if quiet or not house.prefills:
        flag = f"{LOG_REQUESTS} on {_names(quiet)}" if quiet else NO_LOG
        yield Missing("which prefill got the HTTP request", flag)
    elif case.prefill is not None:
        yield Missing(f"whether {case.prefill.name} still got the HTTP request", "give the rest of its log")
    else:
        yield Missing("which prefill got the HTTP request: none of them logged it", "give the logs of all prefills")
    for name, flag in _routers(case):
        yield Missing(f"which pair {name} chose", flag)


def _routers(case: Case) -> Iterator[tuple[str, str]]:
    routers = [one for one in case.deployment.instances.values() if one.role == "router"]
    for one in routers:
        # Rust routers name the pair at DEBUG; none of them names the room.
        known = adapter(one.identity.speaker)
        if known is not None and known.pairs_at_debug and one.identity.level is not Level.DEBUG:
            yield one.name, f"{DEBUG} on {one.name}"


def _nobody(case: Case) -> bool:
    """No page list was sent: the decode had given up before, or was gone; or prefills that log each one had none."""
    failed = case.decode_failed
    if failed is not None and signs.reached(failed) is Phase.PREALLOC:
        return True
    prefills = case.deployment.prefills
    told = bool(prefills) and all(_names_every_room(one) for one in prefills)
    return told or _gone(case)


def _names_every_room(one: Instance) -> bool:
    known = adapter(one.identity.speaker)
    return known is not None and known.names_every_room


def _gone(case: Case) -> bool:
    """The only decode it can have been was dead before the room began."""
    span, decode = case.story.span, case.decode
    death = case.deaths.get(decode.name) if decode is not None and case.who.decode is None else None
    return death is not None and span is not None and death.at <= span[0] + NEAR


def _contact_flag(case: Case) -> str:
    """NIXL logs the handshake at DEBUG; mooncake never does, there only the request's address leads on."""
    engines = (*case.deployment.prefills, *case.deployment.decodes)
    if any(one.identity.backend == "mooncake" for one in engines):
        return f"{LOG_REQUESTS} on {_names(case.deployment.decodes)} (mooncake logs no handshake at any level)"
    return f"{DEBUG} on {_names(case.deployment.prefills)}"


def _names(instances: Iterable[Instance]) -> str:
    return ", ".join(one.name for one in instances) or "every engine"
