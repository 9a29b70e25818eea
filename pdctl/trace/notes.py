"""What else is to be said about a room: other attempts, ambiguities, what an answer takes for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.trace.case import Case

SEVERAL = {
    "requested": "lines of several prefills say they had the request",
    "contacted": "the page list went to several prefills",
    "decode": "lines of several decodes name the room",
}


def notes(case: Case) -> tuple[str, ...]:
    return tuple(_notes(case))


def _notes(case: Case) -> Iterator[str]:
    if case.warm_up:
        yield (
            f"PD716 room-zero: room {case.story.room} is no user's: engines and probes send it with a peer that is not "
            "there, for warm-up and health; no KV cache moves, and it says nothing about any pair"
        )
        return
    if not case.story.events:
        yield f"no line of these logs names room {case.story.room}: this holds if it was sent to them at all"
    for name in case.who.several:
        yield f"{SEVERAL[name]}: the room was sent twice, or used for two requests"
    for name, rids in case.story.rids.items():
        if len(rids) > 1:
            yield f"{name} had the room for {len(rids)} requests: {', '.join(rids)}"
    url = case.who.url
    if url is not None and case.deployment.at_url(url) is None:
        yield f"the router sent the request to {url}; none of these logs is its"
    yield from _retries(case)


def _retries(case: Case) -> Iterator[str]:
    listed = [attempt for attempt in case.joined.attempts if attempt.listed]
    if len(case.joined.attempts) != 1 or not listed:
        return
    one = listed[0]
    if one.number:
        yield f"PD715 router-retried: this was attempt {one.number} of {one.request}, under a room of its own"
    elif any(event.row.id == "retrying" for event in one.lines):
        yield f"PD715 router-retried: {one.request} was tried again, under another room"
