"""Who had the room: which prefill got the HTTP request, which one got the page list, which decode, and the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Phase, Sign
from pdctl.engines.row_matching import adapter
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.observed_deployment import HostPort, parse_address, sent_address
from pdctl.trace.room_events import Conclusion, first_failure, is_answer, seconds_waited, shows_page_list, shows_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.joins import JoinableRoom, Joined
    from pdctl.trace.observed_deployment import ObservedDeployment
    from pdctl.trace.room_events import RoomEvents

BESIDE = 3.0  # seconds


class Attribution(NamedTuple):
    """requested: the prefill that got the HTTP request; contacted: the one that got the page list.

    arrived: the decode that the KV cache reached. url: where the router sent the request. sent_decode: the decode to
    which the router's line about the room sent it; only `decode` is known to have had it.

    several: the attributes for which lines name more than one instance, so none is reported.
    """

    requested: Conclusion | None = None
    contacted: Conclusion | None = None
    decode: Conclusion | None = None
    arrived: Conclusion | None = None
    url: str | None = None
    several: tuple[str, ...] = ()
    sent_decode: Conclusion | None = None

    @property
    def crossed(self) -> bool:
        """The request and the page list went to different prefills."""
        return bool(self.requested and self.contacted and self.requested.value != self.contacted.value)


def attribute(
    room_events: RoomEvents,
    deployment: ObservedDeployment,
    joined: Joined,
    around: Sequence[Event],
    rooms: Mapping[int, JoinableRoom],
    settled: Conclusion | None,
) -> Attribution:
    """joined: router attempts that can be this room. settled: counting proves that its KV cache arrived."""
    found = _named(room_events, deployment)
    found = found._replace(url=_url(room_events, joined), sent_decode=_sent_decode(room_events, deployment))
    if found.decode is None and "decode" not in found.several:
        found = found._replace(decode=_routed(room_events, deployment, joined, "decode"))
    if found.requested is None and "requested" not in found.several:
        found = found._replace(requested=_routed(room_events, deployment, joined, "prefill"))
    if found.contacted is None and "contacted" not in found.several:
        found = found._replace(
            contacted=Contact(room_events, deployment, around).find(found.requested, found.decode, joined)
        )
    if found.requested is None and found.url is None and "requested" not in found.several:
        found = found._replace(requested=request_given_up(room_events, found.contacted, around, rooms, deployment))
    return _completed(found._replace(arrived=_arrived(room_events, found, joined, settled)))


def _named(room_events: RoomEvents, deployment: ObservedDeployment) -> Attribution:
    """What the room's own lines state directly."""
    decodes = _where(room_events.by("decode"), "its own lines about the room stand here")
    decodes = decodes or _agents(room_events, deployment)
    wanted = {
        "requested": _where(
            filter(shows_request, room_events.events), "only a prefill that has the request writes this"
        ),
        "contacted": _where(
            filter(shows_page_list, room_events.events), "only a prefill that got the page list writes this"
        ),
        "decode": decodes,
    }
    several = tuple(name for name, known in wanted.items() if len(known) > 1)
    one = {name: known[0] if len(known) == 1 else None for name, known in wanted.items()}
    return Attribution(one["requested"], one["contacted"], one["decode"], several=several)


def _where(events: Iterable[Event], why: str) -> list[Conclusion]:
    """One conclusion for each instance whose log has these lines, with its first line."""
    first: dict[str, Event] = {}
    for event in events:
        first.setdefault(event.instance, event)
    return [Conclusion(name, why, (event,)) for name, event in first.items()]


def _agents(room_events: RoomEvents, deployment: ObservedDeployment) -> list[Conclusion]:
    """NIXL: the prefill's log names the decode's agent, and the decode's own log says which agent it is."""
    found: dict[str, Conclusion] = {}
    for event in room_events.by("prefill"):
        owner = deployment.by_agent(event.values.get("agent", ""))
        if owner is not None:
            found.setdefault(
                owner.name, Conclusion(owner.name, "the NIXL agent that sent the page list is its", (event,))
            )
    return list(found.values())


def _url(room_events: RoomEvents, joined: Joined) -> str | None:
    """The URL that pdctl's own router logs with the room, or the one that all attempts that can be the room share."""
    urls = {event.values["prefill"] for event in room_events.by("router") if event.values.get("prefill")}
    return next(iter(urls)) if len(urls) == 1 else joined.prefill


def _sent_decode(room_events: RoomEvents, deployment: ObservedDeployment) -> Conclusion | None:
    lines = [event for event in room_events.by("router") if event.values.get("decode")]
    owners = {owner.name for event in lines if (owner := deployment.at_url(event.values["decode"])) is not None}
    if len(owners) != 1 or len({event.values["decode"] for event in lines}) != 1:
        return None
    return Conclusion(owners.pop(), "the router sent it there, and no line says that it arrived", tuple(lines[:1]))


def _routed(room_events: RoomEvents, deployment: ObservedDeployment, joined: Joined, leg: str) -> Conclusion | None:
    """The engine the router sent this leg to, if it was up at that time."""
    lines = [event for event in room_events.by("router") if event.values.get(leg)]
    urls = {event.values[leg] for event in lines}
    if not urls:
        url = joined.prefill if leg == "prefill" else joined.decode
        urls = {url} if url else set()
        lines = [event for attempt in joined.attempts for event in attempt.lines[:1]]
    if len(urls) != 1:
        return None
    owner = deployment.at_url(next(iter(urls)))
    answered = [event for event in lines if event.row.phase is Phase.FINISHED]
    if owner is not None and answered:
        return Conclusion(owner.name, "the router sent it there, and it was answered", tuple(answered[:1]))
    times = [event.t for event in lines if event.t is not None]
    times = times or [attempt.start for attempt in joined.attempts]
    # A request to a dead process never arrives, so a later line of its log must show that it was alive. Without a
    # start line, the start of a later process may be lost too, and the later lines could be that process's.
    if owner is None or not times or not owner.started or not owner.lived_past(max(times)):
        return None
    return Conclusion(owner.name, "the router sent it there, and it was up", tuple(lines[:2]))


def _arrived(
    room_events: RoomEvents, found: Attribution, joined: Joined, settled: Conclusion | None
) -> Conclusion | None:
    if found.crossed or first_failure(room_events.events, "decode") or first_failure(room_events.events, "prefill"):
        return None
    for event in room_events.by("decode"):
        if event.proves(Sign.CACHE_ARRIVED) or is_answer(event):
            return Conclusion(event.instance, "its own line says so", (event,))
    if joined.closed and found.decode is not None:
        lines = tuple(event for attempt in joined.attempts for event in attempt.lines[-1:])
        return Conclusion(found.decode.value, "the router answered 200 with both legs at their end", lines[:2])
    return settled


def _completed(found: Attribution) -> Attribution:
    """The prefill that computed the cache sends it: once it has arrived, requested and contacted are the same."""
    if found.arrived is None:
        return found
    if found.requested is None and found.contacted is not None and "requested" not in found.several:
        why = f"its cache arrived, and only {found.contacted.value} was given the pages to write it to"
        events = (*found.contacted.events, *found.arrived.events)
        return found._replace(requested=Conclusion(found.contacted.value, why, events))
    if found.contacted is None and found.requested is not None and "contacted" not in found.several:
        why = f"its cache arrived, and {found.requested.value} had the request"
        events = (*found.requested.events, *found.arrived.events)
        return found._replace(contacted=Conclusion(found.requested.value, why, events))
    return found


class Contact:
    def __init__(self, room_events: RoomEvents, deployment: ObservedDeployment, around: Sequence[Event]) -> None:
        self._lines = room_events.by("decode")
        self._room_events = room_events
        self._deployment = deployment
        self._around = around

    def find(self, requested: Conclusion | None, decode: Conclusion | None, joined: Joined) -> Conclusion | None:
        sent = next((event for event in self._lines if event.proves(Sign.PAGE_LIST_SENT)), None)
        if sent is None:
            return None
        return (
            self._by_rank(sent)
            or self._by_given_address(sent)
            or self._by_received_address(sent, decode)
            or self._by_configuration(sent, requested, decode, joined)
        )

    def _by_rank(self, sent: Event) -> Conclusion | None:
        """The rank the page list went to, named together with the room by an abort notice.

        `Fetched bootstrap info: … for engine rank` comes before `Sending to …` and names no room. It proves nothing: if
        a line between the two is lost, it may belong to another room.
        """
        for event in self._lines:
            if event.proves(Sign.ABORT_SENDS):
                known = self._rank(event.values.get("addr", ""), (sent, event))
                if known is not None:
                    return known
        return None

    def _rank(self, address: str, events: tuple[Event, ...]) -> Conclusion | None:
        owner = self._deployment.rank_owner(address)
        if owner is None:
            return None
        return Conclusion(owner.name, f"the page list went to {address}, a rank of {owner.name}", events)

    def _by_given_address(self, sent: Event) -> Conclusion | None:
        for event in self._lines:
            if event.proves(Sign.BOOTSTRAP_GIVEN) and event.values.get("addr"):
                address = parse_address(event.values["addr"])
                known = address and self._bootstrap(address, (event, sent))
                if known:
                    return known
        return None

    def _by_received_address(self, sent: Event, decode: Conclusion | None) -> Conclusion | None:
        """`Receive:` shows the address as the request carried it; the decode later puts its own port for a null."""
        for event in self._lines:
            if event.proves(Sign.REQUEST_ARRIVED) and event.values.get("host"):
                port = event.values.get("port", "")
                number = self._default(decode) if port == "None" else numerals.whole(port)
                known = self._bootstrap(HostPort(event.values["host"], number), (event, sent))
                if known:
                    return known
        return None

    def _by_configuration(
        self, sent: Event, requested: Conclusion | None, decode: Conclusion | None, joined: Joined
    ) -> Conclusion | None:
        """The bootstrap server to which the router's start line leads every request that can be this one."""
        lines: list[Event] = []
        owners: set[str | None] = set()
        for router in self._deployment.routers:
            if router.cut or self._names_address(router.name):
                return None  # the address it logs with a room may differ from its list
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
        return Conclusion(name, why, (*lines, sent))

    def _names_address(self, router: str) -> bool:
        instance = self._deployment.instances.get(router)
        known = adapter(instance.identity.speaker) if instance else None
        return known is not None and known.names_address

    def _serves(self, url: str, name: str) -> bool:
        owner = self._deployment.at_url(url)
        return owner is not None and owner.name == name

    def _default(self, decode: Conclusion | None) -> int | None:
        """The port the decode uses in place of a null: its own --disaggregation-bootstrap-port."""
        instance = decode and self._deployment.instances.get(decode.value)
        return instance.default_port if instance else None

    def _bootstrap(self, address: HostPort, events: tuple[Event, ...]) -> Conclusion | None:
        owner = self._deployment.bootstrap_owner(address)
        return Conclusion(owner.name, f"the bootstrap server at {address} is {owner.name}'s", events) if owner else None


def request_given_up(
    room_events: RoomEvents,
    contacted: Conclusion | None,
    around: Sequence[Event],
    rooms: Mapping[int, JoinableRoom],
    deployment: ObservedDeployment,
) -> Conclusion | None:
    """The prefill whose unannounced request was given up just when the decode gave up this room.

    None unless exactly one such request fits this room, no other room fits it, and the router's list misdirects it.
    """
    failed = first_failure(room_events.events, "decode")
    if contacted is None or failed is None or failed.t is None:
        return None
    if not (seconds_waited(failed) or failed.proves(Sign.GAVE_UP_WAITING)):
        return None
    at = failed.t
    others = [
        one
        for one in rooms.values()
        if one.room != room_events.room
        and one.failed is not None
        and abs(one.failed - at) <= BESIDE
        and not one.requested
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
    return Conclusion(event.instance, why, (event,))


def _misled(deployment: ObservedDeployment, waits: str, contacted: str) -> bool:
    """Whether the router's list sends the waiting prefill's requests to the contacted one, or sends no port.

    Otherwise the missing line of either room may simply be lost.
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
