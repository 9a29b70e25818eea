"""Which prefill had the request, when its only line names a request and no room: a wait in vain, given up in time.

A prefill at DEBUG says `Abort bootstrap queue request. req.rid=…` for a request no decode ever announced. Where one
such line stands beside the second in which the decode gave this room up, and nothing else can be meant, they are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace import signs
from pdctl.trace.known import Known
from pdctl.trace.story import waited
from pdctl.trace.upstreams import sent_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.glimpses import Glimpse
    from pdctl.trace.story import Story

BESIDE = 3.0  # seconds


def leftover(
    story: Story,
    contacted: Known | None,
    around: Sequence[Event],
    rooms: Mapping[int, Glimpse],
    deployment: Deployment,
) -> Known | None:
    """None unless exactly one request fits this room, no other room fits it, and the router's list misleads it."""
    failed = signs.failed_on(story.events, "decode")
    if contacted is None or failed is None or failed.t is None:
        return None
    if not (waited(failed) or failed.proves(Sign.GAVE_UP_WAITING)):
        return None
    at = failed.t
    others = [
        one
        for one in rooms.values()
        if one.room != story.room and one.failed is not None and abs(one.failed - at) <= BESIDE and not one.requested
    ]
    taken = {event.rid for event in around if event.rid and event.room}
    found = {
        event.rid: event
        for event in around
        if event.proves(Sign.GAVE_UP_REQUEST)
        and event.rid not in taken
        and event.instance != contacted.value
        and event.t is not None
        and abs(event.t - at) <= BESIDE
    }
    if others or len(found) != 1:
        return None
    event = next(iter(found.values()))
    if not _misled(deployment, event.instance, contacted.value):
        return None
    why = "the one request given up unannounced just when the decode gave this room up waited there"
    return Known(event.instance, why, (event,))


def _misled(deployment: Deployment, waits: str, contacted: str) -> bool:
    """The router's list leads requests of the prefill that waits to the one that was contacted, or sends no port.

    Without that, the other line of either room may just be lost.
    """
    if len(deployment.routers) != 1 or len(deployment.prefills) != 2:
        return False
    for one in deployment.routers[0].prefills:
        owner = deployment.at_url(one.url)
        if owner is not None and owner.name != waits:
            continue
        address = sent_address(one, None)
        led = deployment.bootstrap_owner(address) if address is not None else None
        if one.port is None or (led is not None and led.name == contacted):
            return True
    return False
