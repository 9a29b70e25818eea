"""What else is to be said about a room: other attempts, ambiguities, what an answer takes for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace import canaries
from pdctl.trace.causes.listed import MOST, destinations
from pdctl.trace.room import Outcome
from pdctl.trace.upstreams import apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.trace.case import Case
    from pdctl.trace.verdict import Verdict

HINT = 330.0  # seconds after the page list in which a prefill may give up the request that waits for it

SEVERAL = {
    "requested": "lines of several prefills say they had the request",
    "contacted": "the page list went to several prefills",
    "decode": "lines of several decodes name the room",
}


def notes(case: Case, verdict: Verdict, ended: Outcome) -> tuple[str, ...]:
    return tuple(_notes(case, verdict, ended))


def _notes(case: Case, verdict: Verdict, ended: Outcome) -> Iterator[str]:
    if case.warm_up:
        yield (
            f"PD716 room-zero: room {case.story.room} is no user's: engines and probes send it with a peer that is not "
            "there, for warm-up and health; no KV cache moves, and it says nothing about any pair"
        )
        return
    if canaries.ours(case.story):
        yield "the room is a canary, not a user's request: pdctl doctor or the router sent it to try the pair"
    if not case.story.events:
        yield f"no line of these logs names room {case.story.room}; it may have been sent elsewhere"
    for name in case.who.several:
        yield f"{SEVERAL[name]}: the room was sent twice, or used for two requests"
    for name, rids in case.story.rids.items():
        if len(rids) > 1:
            yield f"{name} had the room for {len(rids)} requests: {', '.join(rids)}"
    url = case.who.url
    if url is not None and case.deployment.at_url(url) is None:
        yield f"the router sent the request to {url}; none of these logs is its"
    if ended is not Outcome.OK:
        yield from _nulls(case, verdict)
        yield from _given_up(case)
    yield from _retries(case)


def _nulls(case: Case, verdict: Verdict) -> Iterator[str]:
    """What the router's list would do to some rooms, where nothing shows that it did it to this one."""
    router = case.router
    if verdict.cause is not None or router is None or router.start is None:
        return
    nulls = [one for one in router.prefills if one.port is None]
    several = len(nulls) > 1 and not apart(nulls)
    if not (several or (nulls and router.cut)) or all(one.home for one in destinations(case, router)):
        return
    urls = list(dict.fromkeys(one.url for one in nulls))
    names = " and ".join(urls[:MOST]) + (" and others" if router.cut or len(urls) > MOST else "")
    yield (
        f"PD201 bootstrap-port-null: {router.name} sends no bootstrap port for {names}; a decode puts in its own, "
        "which is one prefill's at most: requests to the others hang. No line shows whether this room is one of them"
    )


def _given_up(case: Case) -> Iterator[str]:
    """Requests given up where they may have waited for this room's page list: no line says which room they had."""
    asked, met, span = case.who.requested, case.who.contacted, case.story.span
    if met is None or span is None or (asked is not None and not asked.by_elimination):
        return
    named = {event.rid for event in case.around if event.rid and event.room}
    for event in case.around:
        late = event.proves(Sign.GAVE_UP_REQUEST) and event.t is not None and span[0] <= event.t <= span[0] + HINT
        if late and event.instance != met.value and event.rid not in named:
            assert event.t is not None
            yield (
                f"a hint, no proof: {event.instance} gave up request {event.rid} in its bootstrap queue "
                f"{event.t - span[0]:g} s after this room began ({event.place}), and no line says which room that had"
            )
            return


def _retries(case: Case) -> Iterator[str]:
    listed = [attempt for attempt in case.joined.attempts if attempt.listed]
    if len(case.joined.attempts) != 1 or not listed:
        return
    one = listed[0]
    if one.number:
        yield f"PD715 router-retried: this was attempt {one.number} of {one.request}, under a room of its own"
    elif any(event.proves(Sign.RETRIED) for event in one.lines):
        yield f"PD715 router-retried: {one.request} was tried again, under another room"
