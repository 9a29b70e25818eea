"""What these logs cannot tell of a room, and the flag or the log that would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import message_details
from pdctl.engines.base import Level, Phase, Sign
from pdctl.engines.row_matching import adapter
from pdctl.trace.case import NEAR
from pdctl.trace.observed_deployment import PLACEHOLDER
from pdctl.trace.room import MissingEvidence, RoomOutcome
from pdctl.trace.room_events import step_reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.trace.case import Case
    from pdctl.trace.observed_deployment import ObservedInstance

LOG_REQUESTS = "--log-requests --log-requests-level 0"
TIME_STATS = "--enable-request-time-stats-logging"
DEBUG = "--log-level debug"
NO_LOG = "give its log to trace-room as well"


def missing_evidence(case: Case, outcome: RoomOutcome, fix: str) -> tuple[MissingEvidence, ...]:
    """One entry for each thing that stayed unknown, in the order a room goes through them."""
    return () if case.warm_up else tuple(dict.fromkeys(_missing_evidence(case, outcome, fix)))


def _missing_evidence(case: Case, outcome: RoomOutcome, fix: str) -> Iterator[MissingEvidence]:
    who, deployment = case.who, case.deployment
    if outcome is not RoomOutcome.OK:
        yield from (one.missing_evidence for one in case.lost)
    for role, instances in (("prefill", deployment.prefills), ("decode", deployment.decodes)):
        if not instances:
            yield MissingEvidence(f"no {role}'s log is here", NO_LOG)
    if who.requested is None or who.requested.by_elimination:
        yield from _missing_request(case)
    if who.contacted is None and not _nobody(case):
        yield MissingEvidence("which prefill got the decode's page list", _contact_flag(case))
    if who.decode is None and who.sent_decode is None and deployment.decodes:
        quiet = [one for one in deployment.decodes if not one.identity.log_requests]
        if quiet:
            yield MissingEvidence("which decode had the room", f"{LOG_REQUESTS} on {_names(quiet)}")
        else:
            yield MissingEvidence("which decode had the room: none of them logged it", _more_logs(case, "decodes"))
    timed = next((event for event in case.room_events.by("decode") if event.proves(Sign.DECODE_TIMES)), None)
    if PLACEHOLDER in fix:
        yield MissingEvidence("the bootstrap ports of the prefills", "give their logs from the start (server_args=…)")
    if outcome in (RoomOutcome.UNKNOWN, RoomOutcome.INCOMPLETE) and timed is not None:
        left = f"how the room ended: {timed.instance} had done its part and logged no answer, as for a client that left"
        yield MissingEvidence(left, "read the log of the router, or ask the client")
    elif outcome in (RoomOutcome.UNKNOWN, RoomOutcome.INCOMPLETE):
        flag = f"{TIME_STATS} on {_names((*deployment.prefills, *deployment.decodes))}"
        yield MissingEvidence("how the room ended: a room that goes well leaves no line", flag)


def _missing_request(case: Case) -> Iterator[MissingEvidence]:
    deployment = case.deployment
    if any(message_details.unreached_leg(event.text) == "prefill" for event in case.room_events.by("router")):
        return  # no prefill got it: the router could not connect
    if case.who.url is not None and deployment.at_url(case.who.url) is None:
        yield MissingEvidence(f"the router sent the request to {case.who.url}, which none of these logs is", NO_LOG)
        return
    quiet = [one for one in deployment.prefills if not one.identity.log_requests]
    if quiet or not deployment.prefills:
        flag = f"{LOG_REQUESTS} on {_names(quiet)}" if quiet else NO_LOG
        yield MissingEvidence("which prefill got the HTTP request", flag)
    elif case.prefill is not None:
        yield MissingEvidence(f"whether {case.prefill.name} still got the HTTP request", "give the rest of its log")
    else:
        what = "which prefill got the HTTP request: none of them logged it"
        yield MissingEvidence(what, _more_logs(case, "prefills"))
    for name, flag in _routers(case):
        yield MissingEvidence(f"which pair {name} chose", flag)


def _more_logs(case: Case, role: str) -> str:
    """The advice to give the logs of all instances of a role, unless all that the routers list have been read."""
    routers = case.deployment.routers
    urls = [url for router in routers for url in (*(target.url for target in router.prefills), *router.decodes)]
    if not urls or any(router.cut for router in routers) or any(case.deployment.at_url(url) is None for url in urls):
        return f"give the logs of all {role}"
    return "check the room's number, or ask the client: the logs of all that the router lists were read"


def _routers(case: Case) -> Iterator[tuple[str, str]]:
    routers = [one for one in case.deployment.instances.values() if one.role == "router"]
    for one in routers:
        # Rust routers log the pair at DEBUG; none of them logs the room.
        known = adapter(one.identity.speaker)
        if known is not None and known.pairs_at_debug and one.identity.level is not Level.DEBUG:
            yield one.name, f"{DEBUG} on {one.name}"


def _nobody(case: Case) -> bool:
    """Whether no page list was sent: the decode gave up or died before, or prefills that log every one got none."""
    failed = case.decode_failed
    if failed is not None and step_reached(failed) is Phase.PREALLOC:
        return True
    prefills = case.deployment.prefills
    told = bool(prefills) and all(one.names_every_room for one in prefills)
    return told or _decode_was_dead(case)


def _decode_was_dead(case: Case) -> bool:
    """Whether the only decode that can have had the room was dead before it began."""
    span, decode = case.room_events.span, case.decode
    death = case.deaths.get(decode.name) if decode is not None and case.who.decode is None else None
    return death is not None and span is not None and death.since <= span[0] + NEAR


def _contact_flag(case: Case) -> str:
    """The flag that reveals the contact: NIXL logs the handshake at DEBUG; mooncake never does, so log the requests."""
    engines = (*case.deployment.prefills, *case.deployment.decodes)
    if any(one.identity.backend == "mooncake" for one in engines):
        return f"{LOG_REQUESTS} on {_names(case.deployment.decodes)} (mooncake logs no handshake at any level)"
    return f"{DEBUG} on {_names(case.deployment.prefills)}"


def _names(instances: Iterable[ObservedInstance]) -> str:
    return ", ".join(one.name for one in instances) or "every engine"
