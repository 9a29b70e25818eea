"""The request itself: its client left, the router's timeout expired, an engine refused it, or its room was misused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.engines import message_details, numerals
from pdctl.engines.base import Phase, Sign
from pdctl.engines.sglang import behaviour
from pdctl.shell_quoting import pasteable
from pdctl.trace.case import NEAR, Case, CauseFinding, Proof
from pdctl.trace.causes.dead_processes import router_gone
from pdctl.trace.observed_deployment import sent_address
from pdctl.trace.room_events import is_abort_notice, is_canary, is_failure, seconds_waited, step_reached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedInstance

LEG_CODES = {"prefill": "PD713", "decode": "PD714"}


def client_left(case: Case) -> CauseFinding | None:
    """The request was aborted from outside, before anything else went wrong."""
    events = case.room_events.events
    gone = [event for event in events if event.proves(Sign.CLIENT_LEFT) or message_details.client_closed(event.text)]
    at_router = any(event.role == "router" for event in gone)
    if case.done is not None or case.who.crossed or not (case.failed or at_router) or not _sound(case):
        return None
    if router_gone(case) is not None:
        return None  # the router died, and the connection with it
    ends = [event for event in events if is_failure(event)]
    aborts = [event for event in ends if event.row.phase is Phase.ABORTED and event.t is not None]
    others = [event for event in ends if event not in aborts and not is_abort_notice(event) and event not in gone]
    engines = [event for event in aborts if event.role != "router"]
    first = next(iter(engines or aborts), None)
    asked = [] if first is None or gone else _abort_requests(case, first)
    # Doctor drops some, and checks at once what remains.
    told = at_router or bool(asked) or (bool(gone) and is_canary(case.room_events))
    if first is None or others or not _alive(case, first, told=told):
        return None
    left = after(case, gone, first)
    fills = {"observed": left, "instance": first.instance}
    proofs = [Proof("the client closed the connection", event) for event in gone[:2]]
    proofs += [Proof("the request was aborted here", event) for event in aborts[:2] if event not in gone]
    if is_canary(case.room_events):
        why = "the request was a canary of pdctl doctor, which cuts one short to check that both sides let go of it"
        return CauseFinding("PD706", "client", why, tuple(proofs), "", fills, "make no change: nothing is wrong")
    why = "the request was aborted from outside before anything failed: the client, or a router on its behalf, gave up"
    fix = ""
    if asked:
        name = asked[0].instance
        fills["what"] = f"somebody aborted the request (POST /abort_request at {name})"
        why = f"{name} was asked to abort it; no line says that the client left, and nothing had failed"
        fix = f"grep -n 'POST /abort_request' {pasteable(asked[0].place.on_disk)}   # names the addresses it came from"
        proofs.append(Proof("somebody asked it to abort requests", asked[0]))
    elif not gone and not _writes_calls(case, first.instance):
        fills["what"] = "the client went away, or somebody aborted the request,"
        why = "the request was aborted from outside before anything failed: the client left, or somebody aborted it at "
        why += f"{first.instance}; no line tells which"
    elif at_router:
        why = "the client closed its connection to the router before the answer was complete; nothing had failed"
    if case.undelivered is not None:
        answer, late = case.undelivered
        why = f"the client closed its connection to the router, which had not handed on the answer for {late:.3g} s"
        proofs.append(Proof(f"{answer.instance} had finished the answer {late:.3g} s before", answer))
    elif case.answered_nobody is not None:
        answer, when = case.answered_nobody
        why = f"the client closed its connection to the router {when}"
        proofs.append(Proof(f"{answer.instance} finished the answer, which nobody received", answer))
    side = "client" if gone or (not asked and _writes_calls(case, first.instance)) else ""
    return CauseFinding("PD706", side, why, tuple(proofs), asked[0].instance if asked else "", fills, fix)


def _abort_requests(case: Case, abort: Event) -> list[Event]:
    """The lines with which an engine of the room answered an order to abort requests as this one was aborted."""
    names = {event.instance for event in case.room_events.events if event.role != "router"}
    return [
        event
        for event in case.around.proving(Sign.ABORT_REQUESTED)
        if event.instance in names and event.values.get("status", "").startswith("2")
        and event.t is not None and abort.t is not None and abs(event.t - abort.t) <= NEAR
    ]  # fmt: skip


def _writes_calls(case: Case, instance: str) -> bool:
    """Whether the instance's log has lines about HTTP calls, so that one about an abort would be there."""
    calls = case.around.once("calls", lambda: {e.instance for e in case.around if e.proves(Sign.REQUEST_ANSWERED)})
    return instance in calls


def only_aborted(case: Case) -> bool:
    """Whether the router says that the client left, nothing failed, and page list and request met at one prefill."""
    events = case.room_events.events
    told = any(event.role == "router" and event.proves(Sign.CLIENT_LEFT) for event in events)
    ends = [event for event in events if is_failure(event) and not is_abort_notice(event)]
    asked, met = case.who.requested, case.who.contacted
    met_each_other = case.who.arrived is not None or bool(asked and met and asked.value == met.value)
    return told and met_each_other and all(event.row.phase is Phase.ABORTED for event in ends)


def after(case: Case, gone: Iterable[Event], abort: Event) -> str:
    """How long after the request came the client left, in words, as precisely as the lines tell."""
    began = case.room_events.span[0] if case.room_events.span else None
    for event in sorted(gone, key=lambda one: one.role != "router"):
        spent = numerals.real(event.values.get("total_ms"))
        if spent is not None:
            return f"{spent / 1000:.3g} s"
        own = message_details.end_to_end(event.text) if message_details.client_closed(event.text) else None
        if own is not None:
            return f"{own:.3g} s"
        if event.t is not None and began is not None:
            late = event.t - began
            return f"{max(0.0, late - message_details.CLIENT_POLL):g} to {late:g} s"
    seconds = abort.t - began if abort.t is not None and began is not None else 0.0
    return f"{seconds:g} s" if seconds else "some time"


def _alive(case: Case, abort: Event, *, told: bool) -> bool:
    """Whether both sides went on after it, so neither was waiting for a process that died or whose log is not here.

    told: the router's own line says that the client left, or an engine's line that doctor's canary did. Then a side
    needs a line only at that moment, not later; and the prefill needs none if the cache had arrived.
    """
    decode, prefill = case.decode, case.prefill
    if prefill is None and not told and any(one.instance.role == "prefill" for one in case.deaths.values()):
        return False  # which prefill had the room is not known, and one of them died
    needed = (decode,) if told and case.who.arrived is not None else (decode, prefill)
    others = [one for one in needed if one is not None and one.name != abort.instance]
    return decode is not None and all(_there(one, abort, told=told) for one in others)


def _there(one: ObservedInstance, abort: Event, *, told: bool) -> bool:
    if abort.t is None:
        return False
    return one.lived_past(abort.t) or (told and one.last is not None and one.last >= abort.t - NEAR)


def _sound(case: Case) -> bool:
    """Whether the room would have succeeded; an abort after a wait in vain has another cause."""
    asked, met = case.who.requested, case.who.contacted
    if case.who.arrived is not None or (asked and met and asked.value == met.value):
        return True
    ends = {(event.role, step_reached(event)) for event in case.room_events.events if is_failure(event)}
    if ("decode", Phase.HANDSHAKE) in ends and ("prefill", Phase.BOOTSTRAP) in ends:
        return False  # the decode had sent a page list, and the prefill that waited for it had none
    router, decode = case.router, case.decode
    if router is None:
        return False
    for one in router.prefills:
        address = sent_address(one, decode.default_port if decode else None)
        owner = address and case.deployment.bootstrap_owner(address)
        if owner is None or owner is not case.deployment.at_url(one.url):
            return False
    return True


def outlasted(case: Case) -> CauseFinding | None:
    """The router's own timeout expired while the decode was still writing the answer."""
    decode = case.decode
    written = [
        (tokens, line)
        for line in case.room_events.by("decode")
        if (tokens := message_details.tokens_written(line.text))
    ]
    for event in case.room_events.by("router"):
        overdue = message_details.overdue_leg(event.text)
        if overdue is None or overdue.leg != "decode" or event.t is None or decode is None or not written:
            continue
        if not decode.lived_past(event.t) or decode.name in case.deaths:
            continue
        tokens, line = written[-1]
        spent = numerals.real(event.values.get("total_ms"))
        fills = {"decode": decode.name, "flag": overdue.flag}
        if spent is not None:
            fills["observed"] = f"{spent / 1000:.3g} s"
        why = (
            f"{decode.name} was alive and had written {tokens} tokens when {overdue.flag} was over; nothing had failed"
        )
        proofs = (Proof(f"the router's {overdue.flag} was over", event), Proof(f"{tokens} tokens were written", line))
        return CauseFinding("PD719", "router", why, proofs, "", fills)
    return None


def turned_away(case: Case) -> CauseFinding | None:
    """The request itself was answered 4xx, which the router passes on: no other pair would have helped."""
    event = next((event for event in case.room_events.by("router") if event.row.cause == "PD718"), None)
    if event is None:
        return None
    status = event.values["status"]
    why = f"an engine answered {status}, and the router handed that on: the request was at fault, no instance failed"
    proof = Proof(f"the router answered {status}", event)
    return CauseFinding("PD718", "client", why, (proof,), "", {"observed": f"it was answered {status}"})


def refused(case: Case) -> CauseFinding | None:
    """An engine refused the leg. Checked last: every cause that explains a refusal comes before it."""
    if case.failed:
        return None
    for event in case.room_events.by("router"):
        found = message_details.leg_answer(event.text)
        if found is not None:
            return _refused_leg(case, event, found)
    return None


def _refused_leg(case: Case, event: Event, found: message_details.LegAnswer) -> CauseFinding:
    leg, url, status = found
    instance = case.deployment.at_url(url)
    name = instance.name if instance is not None else url
    fills = {"instance": name, leg: name, "observed": status, "expected": "200", "url": url}
    why = f"{name} answered {status}, and no line of its log says why"
    return CauseFinding(LEG_CODES[leg], leg, why, (Proof(f"{name} answered {status}", event),), name, fills)


def reused(case: Case) -> CauseFinding | None:
    """Two requests used one room: the second finds the state of the first."""
    keyed = next((event for event in case.room_events.events if event.proves(Sign.ROOM_USED_UP)), None)
    twice = [name for name, rids in case.room_events.rids.items() if len(rids) > 1]
    spoken = next((event for event in case.room_events.events if event.row.cause == "PD707"), None)
    if keyed is None and spoken is None:
        return None
    proofs: list[Proof] = []
    for name in twice:
        proofs += _had_the_room(case, name, "request")
    if keyed is not None:
        proofs.append(Proof("the scheduler fell over the room's missing entry and crashed", keyed))
    if spoken is not None:
        proofs.append(Proof("its own line says so", spoken))
    culprit = keyed or spoken or proofs[0].event
    fills = {"room": str(case.room_events.room), "instance": culprit.instance}
    why = "two requests shared the room: the second one looked for an entry that the first one had used up"
    return CauseFinding("PD707", "router", why, tuple(proofs), culprit.instance, fills)


def zero(case: Case) -> CauseFinding | None:
    """Room 0 was used: a decode reads a 0 as "nothing written yet", and waits."""
    first = next((event for event in case.room_events.events if event.role == "decode"), None)
    decode = case.decode
    if case.room_events.room != 0 or first is None or decode is None or case.done is not None:
        return None
    if decode.identity.since is None or not behaviour.ROOM_ZERO_IS_UNWRITTEN.holds(decode.identity.since):
        return None
    why = "a request used room 0, which the decode reads as: nothing was written yet"
    proof = Proof("room 0 in a real transfer", first)
    fix = "draw the room in the router, from 1 to 2^63 - 1"
    side = "router" if case.routed else ""  # who drew it
    return CauseFinding("PD716", side, why, (proof,), decode.name, {"instance": decode.name}, fix)


def shared(case: Case) -> CauseFinding | None:
    """Two requests had the room on one engine at the same time, and it failed; nothing else explains it."""
    twice = [name for name, rids in case.room_events.rids.items() if len(rids) > 1 and _overlap(case, name)]
    if not twice or not case.failed:
        return None
    proofs: list[Proof] = []
    for name in twice:
        proofs += _had_the_room(case, name, "request")
    name = twice[0]
    fills = {"room": str(case.room_events.room), "instance": name}
    return CauseFinding("PD707", "router", "two requests had this room at once", tuple(proofs), name, fills)


def sampled(case: Case) -> CauseFinding | None:
    """One request had n > 1: every sample has this room and its own id."""
    for name, rids in case.room_events.rids.items():
        came = [
            event for event in case.room_events.events if event.instance == name and event.proves(Sign.REQUEST_ARRIVED)
        ]
        asked = [event for event in came if message_details.several_samples(event.text)]
        dispatched = [event for event in case.room_events.by("router") if event.row.phase is Phase.DISPATCHED]
        one_request = len(came) == 1 or (not came and len(dispatched) == 1)
        if len(rids) < 2 or not case.failed or not (asked or (one_request and _overlap(case, name))):
            continue
        proofs = [Proof("the request asks for several samples", event) for event in asked[:1]]
        proofs += [Proof(f"one request came to {name}", event) for event in (came or dispatched)[:1] if not asked]
        proofs += _had_the_room(case, name, "sample")
        why = f"one request became {len(rids)} samples at {name}, and each of them has this room"
        return CauseFinding("PD319", "client", why, tuple(proofs), name, {"instance": name, "observed": str(len(rids))})
    return None


def _overlap(case: Case, name: str) -> bool:
    """Whether one of the requests came during another; a request without a final line is assumed to go on."""
    rids = case.room_events.rids[name]
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for event in case.room_events.events:
        rid = event.rid
        if event.instance != name or rid is None or event.t is None:
            continue
        first[rid] = min(first.get(rid, math.inf), event.t - seconds_waited(event))
        if event.proves(Sign.REQUEST_FINISHED) or is_failure(event):
            last[rid] = max(last.get(rid, -math.inf), event.t)
    spans = sorted((first[rid], last.get(rid, math.inf)) for rid in rids if rid in first)
    # Within one second the order is unknown: that counts as an overlap.
    return len(spans) < 2 or any(after[0] <= before[1] for before, after in pairwise(spans))


def _had_the_room(case: Case, name: str, what: str) -> list[Proof]:
    """The first line of each request for which `name` had the room."""
    rids = frozenset(case.room_events.rids[name])
    first = {rid: event for event in reversed(case.room_events.events) if (rid := event.rid or "") in rids}
    return [Proof(f"{name} had the room for {what} {rid}", event) for rid, event in first.items()]
