"""Who had the room: which prefill got the HTTP request, which the page list, which decode; and why we say so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace import signs
from pdctl.trace.contact import Contact
from pdctl.trace.known import Known
from pdctl.trace.leftover import leftover

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.glimpses import Glimpse
    from pdctl.trace.joins import Joined
    from pdctl.trace.story import Story


@dataclass(frozen=True, slots=True)
class Attribution:
    """arrived: the KV cache reached the decode it names. url: where the router sent the request.

    several: what lines give more than one instance for, so that none is reported.
    """

    requested: Known | None = None
    contacted: Known | None = None
    decode: Known | None = None
    arrived: Known | None = None
    url: str | None = None
    several: tuple[str, ...] = ()

    @property
    def crossed(self) -> bool:
        """The request and the page list went to different prefills."""
        return bool(self.requested and self.contacted and self.requested.value != self.contacted.value)


def attribute(
    story: Story,
    deployment: Deployment,
    joined: Joined,
    around: Sequence[Event],
    rooms: Mapping[int, Glimpse],
    settled: Known | None,
) -> Attribution:
    """joined: the router's attempts that can be this room. settled: counting proves that its KV cache arrived."""
    found = _named(story, deployment)
    found = replace(found, url=_url(story, joined))
    if found.decode is None and "decode" not in found.several:
        found = replace(found, decode=_routed(story, deployment, joined, "decode"))
    if found.requested is None and "requested" not in found.several:
        found = replace(found, requested=_routed(story, deployment, joined, "prefill"))
    if found.contacted is None and "contacted" not in found.several:
        found = replace(found, contacted=Contact(story, deployment, around).find(found.requested, found.decode, joined))
    if found.requested is None and found.url is None and "requested" not in found.several:
        found = replace(found, requested=leftover(story, found.contacted, around, rooms, deployment))
    return _completed(replace(found, arrived=_arrived(story, found, joined, settled)))


def _named(story: Story, deployment: Deployment) -> Attribution:
    """What the room's own lines say outright."""
    decodes = _where(story.by("decode"), "its own lines about the room stand here")
    decodes = decodes or _agents(story, deployment)
    wanted = {
        "requested": _where(filter(signs.requested, story.events), "only a prefill that has the request writes this"),
        "contacted": _where(filter(signs.contacted, story.events), "only a prefill that got the page list writes this"),
        "decode": decodes,
    }
    several = tuple(name for name, known in wanted.items() if len(known) > 1)
    one = {name: known[0] if len(known) == 1 else None for name, known in wanted.items()}
    return Attribution(one["requested"], one["contacted"], one["decode"], several=several)


def _where(events: Iterable[Event], why: str) -> list[Known]:
    """One for each instance these lines stand in, with its first."""
    first: dict[str, Event] = {}
    for event in events:
        first.setdefault(event.instance, event)
    return [Known(name, why, (event,)) for name, event in first.items()]


def _agents(story: Story, deployment: Deployment) -> list[Known]:
    """NIXL: the prefill names the decode's agent, the decode's own log says which agent it is."""
    found: dict[str, Known] = {}
    for event in story.by("prefill"):
        owner = deployment.by_agent(event.values.get("agent", ""))
        if owner is not None:
            found.setdefault(owner.name, Known(owner.name, "the NIXL agent that sent the page list is its", (event,)))
    return list(found.values())


def _url(story: Story, joined: Joined) -> str | None:
    """As pdctl's own router says it with the room, or as all attempts that can be the room agree."""
    urls = {event.values["prefill"] for event in story.by("router") if event.values.get("prefill")}
    return next(iter(urls)) if len(urls) == 1 else joined.prefill


def _routed(story: Story, deployment: Deployment, joined: Joined, leg: str) -> Known | None:
    """The engine the router sent this leg to, if it was there to take it."""
    lines = [event for event in story.by("router") if event.values.get(leg)]
    urls = {event.values[leg] for event in lines}
    if not urls:
        url = joined.prefill if leg == "prefill" else joined.decode
        urls = {url} if url else set()
        lines = [event for attempt in joined.attempts for event in attempt.lines[:1]]
    if len(urls) != 1:
        return None
    owner = deployment.at_url(next(iter(urls)))
    times = [event.t for event in lines if event.t is not None]
    times = times or [attempt.start for attempt in joined.attempts]
    # A request to a process that is gone never arrives: only a later line of its log shows that it was there. Where no
    # start of it is told, a line of another one may be lost, too, and the later lines are that one's.
    if owner is None or not times or not owner.started or not owner.lived_past(max(times)):
        return None
    return Known(owner.name, "the router sent it there, and it was up", tuple(lines[:2]))


def _arrived(story: Story, found: Attribution, joined: Joined, settled: Known | None) -> Known | None:
    if found.crossed or signs.failed_on(story.events, "decode") or signs.failed_on(story.events, "prefill"):
        return None
    for event in story.by("decode"):
        if event.proves(Sign.CACHE_ARRIVED) or signs.answered(event):
            return Known(event.instance, "its own line says so", (event,))
    if joined.closed and found.decode is not None:
        lines = tuple(event for attempt in joined.attempts for event in attempt.lines[-1:])
        return Known(found.decode.value, "the router answered 200 with both legs at their end", lines[:2])
    return settled


def _completed(found: Attribution) -> Attribution:
    """The cache comes from the prefill that computed it: once it has arrived, asked and contacted are one."""
    if found.arrived is None:
        return found
    if found.requested is None and found.contacted is not None and "requested" not in found.several:
        why = f"its cache arrived, and only {found.contacted.value} was given the pages to write it to"
        events = (*found.contacted.events, *found.arrived.events)
        return replace(found, requested=Known(found.contacted.value, why, events))
    if found.contacted is None and found.requested is not None and "contacted" not in found.several:
        why = f"its cache arrived, and {found.requested.value} had the request"
        events = (*found.requested.events, *found.arrived.events)
        return replace(found, contacted=Known(found.requested.value, why, events))
    return found
