"""A leg answered with an error: the request was at fault, or no line of its engine says why but the router's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.trace.case import Case, Finding, Proof

if TYPE_CHECKING:
    from pdctl.logs.event import Event

# What pdctl's router says of a leg; the published ones name no room in such a line.
ANSWERED = re.compile(r"\b(?P<leg>prefill|decode) (?P<url>https?://\S+) answered (?P<status>[45]\d\d)\b")
CODES = {"prefill": "PD713", "decode": "PD714"}


def turned_away(case: Case) -> Finding | None:
    """The request itself was answered 4xx, which the router hands on: no other pair would have helped."""
    event = next((event for event in case.story.by("router") if event.row.cause == "PD718"), None)
    if event is None:
        return None
    status = event.values["status"]
    why = f"an engine answered {status}, and the router handed that on: the request was at fault, no instance failed"
    proof = Proof(f"the router answered {status}", event)
    return Finding("PD718", "client", why, (proof,), "", {"observed": f"it was answered {status}"})


def refused(case: Case) -> Finding | None:
    """The last to be asked: everything that explains the refusal stands before it."""
    if case.failed:
        return None
    for event in case.story.by("router"):
        found = ANSWERED.search(event.text)
        if found is not None:
            return _refusal(case, event, found)
    return None


def _refusal(case: Case, event: Event, found: re.Match[str]) -> Finding:
    leg, status = found["leg"], found["status"]
    instance = case.deployment.at_url(found["url"])
    name = instance.name if instance is not None else found["url"]
    fills = {"instance": name, leg: name, "observed": status, "expected": "200", "url": found["url"]}
    why = f"{name} answered {status}, and no line of its log says why"
    return Finding(CODES[leg], leg, why, (Proof(f"{name} answered {status}", event),), name, fills)
