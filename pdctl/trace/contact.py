"""Which prefill got the decode's page list, by the address it was sent to, where no prefill says so itself.

An address counts only once the decode has sent the list: a line of its transfer queue, or of a finished room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.adapters import adapter
from pdctl.engines.sign import Sign
from pdctl.trace.addresses import Address, parse
from pdctl.trace.known import Known
from pdctl.trace.upstreams import sent_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.joins import Joined
    from pdctl.trace.story import Story


class Contact:
    def __init__(self, story: Story, deployment: Deployment, around: Sequence[Event]) -> None:
        self._lines = story.by("decode")
        self._story = story
        self._deployment = deployment
        self._around = around

    def find(self, requested: Known | None, decode: Known | None, joined: Joined) -> Known | None:
        sent = next((event for event in self._lines if event.proves(Sign.PAGE_LIST_SENT)), None)
        if sent is None:
            return None
        return (
            self._by_rank(sent)
            or self._by_given_address(sent)
            or self._by_received_address(sent, decode)
            or self._by_configuration(sent, requested, decode, joined)
        )

    def _by_rank(self, sent: Event) -> Known | None:
        """The rank the list went to, as a notice of abort names it together with the room.

        `Fetched bootstrap info: … for engine rank` stands in front of `Sending to …` and names no room: where a line
        between the two is lost, it is another room's, so it proves nothing.
        """
        for event in self._lines:
            if event.proves(Sign.ABORT_SENDS):
                known = self._rank(event.values.get("addr", ""), (sent, event))
                if known is not None:
                    return known
        return None

    def _rank(self, address: str, events: tuple[Event, ...]) -> Known | None:
        owner = self._deployment.rank_owner(address)
        if owner is None:
            return None
        return Known(owner.name, f"the page list went to {address}, a rank of {owner.name}", events)

    def _by_given_address(self, sent: Event) -> Known | None:
        for event in self._lines:
            if event.proves(Sign.BOOTSTRAP_GIVEN) and event.values.get("addr"):
                address = parse(event.values["addr"])
                known = address and self._bootstrap(address, (event, sent))
                if known:
                    return known
        return None

    def _by_received_address(self, sent: Event, decode: Known | None) -> Known | None:
        """`Receive:` shows the address as the request had it: a null port is replaced later, by the decode's own."""
        for event in self._lines:
            if event.proves(Sign.REQUEST_ARRIVED) and event.values.get("host"):
                port = event.values.get("port", "")
                number = self._default(decode) if port == "None" else numerals.whole(port)
                known = self._bootstrap(Address(event.values["host"], number), (event, sent))
                if known:
                    return known
        return None

    def _by_configuration(
        self, sent: Event, requested: Known | None, decode: Known | None, joined: Joined
    ) -> Known | None:
        """What the router's start line makes of every request this one can be."""
        lines: list[Event] = []
        owners: set[str | None] = set()
        for router in self._deployment.routers:
            if router.cut or self._names_address(router.name):
                return None  # what it names with a room may differ from its list
            urls = [one.url for one in router.prefills]
            if requested is not None:
                urls = [url for url in urls if self._serves(url, requested.value)] or urls
            elif joined.prefill in urls:
                urls = [joined.prefill]
            for upstream in router.prefills:
                if upstream.url in urls:
                    address = sent_address(upstream, self._default(decode))
                    owner = address and self._deployment.bootstrap_owner(address)
                    owners.add(owner.name if owner else None)
            lines += [router.start] if router.start else []
        if len(owners) != 1 or len(self._deployment.routers) != 1 or None in owners:
            return None
        name = next(iter(owners))
        assert name is not None
        why = "the router's list and the decode's own port lead every request it can be to this bootstrap server"
        return Known(name, why, (*lines, sent))

    def _names_address(self, router: str) -> bool:
        instance = self._deployment.instances.get(router)
        known = adapter(instance.identity.speaker) if instance else None
        return known is not None and known.names_address

    def _serves(self, url: str, name: str) -> bool:
        owner = self._deployment.at_url(url)
        return owner is not None and owner.name == name

    def _default(self, decode: Known | None) -> int | None:
        """What the decode puts in for a null: its own --disaggregation-bootstrap-port."""
        instance = decode and self._deployment.instances.get(decode.value)
        return instance.default_port if instance else None

    def _bootstrap(self, address: Address, events: tuple[Event, ...]) -> Known | None:
        owner = self._deployment.bootstrap_owner(address)
        return Known(owner.name, f"the bootstrap server at {address} is {owner.name}'s", events) if owner else None
