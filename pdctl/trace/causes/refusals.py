"""A leg answered with an error and no line of its engine says why: the router's word is all there is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.trace.case import Case, Finding, Proof

if TYPE_CHECKING:
    from pdctl.logs.event import Event

# What pdctl's router says of a leg; the published ones name no room in such a line.
ANSWERED = re.compile(r"\b(?P<leg>prefill|decode) (?P<url>https?://\S+) answered (?P<status>[45]\d\d)\b")
CODES = {"prefill": "PD713", "decode": "PD714"}


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
