"""The decode looked for the bootstrap server in the wrong place: null, wrong, swapped or unreachable ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import message_details, numerals
from pdctl.engines.base import Sign
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable
from pdctl.trace.case import Case, CauseFinding, Proof
from pdctl.trace.observed_deployment import (
    PLACEHOLDER,
    HostPort,
    on_hosts_of_their_own,
    parse_address,
    router_command,
    sends_its_list,
    sent_address,
)
from pdctl.trace.room_events import Conclusion, seconds_waited, shows_page_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engines.identify import ListedPrefill
    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedInstance, RouterWorkers

MOST_NAMED = 4  # prefills named in one sentence
LEG_MISSING = "PD703"  # also written by a prefill whose page list found no request


def crossed(case: Case) -> CauseFinding | None:
    """The request went to one prefill, the page list to another."""
    if not case.who.crossed:
        return None
    asked, met = case.who.requested, case.who.contacted
    assert asked is not None
    assert met is not None
    proofs = (
        *(Proof(f"{asked.value} has the request: {asked.why}", event) for event in asked.events[:1]),
        *(Proof(f"{met.value} got the page list: {met.why}", event) for event in met.events[:1]),
    )
    requested = case.deployment.instances.get(asked.value)
    contacted = case.deployment.instances.get(met.value)
    return _misled(case, requested, contacted, proofs, f"{asked.value} waits for a page list that went to {met.value}")


def unclaimed(case: Case) -> CauseFinding | None:
    """The prefill that got the page list says itself that no request came, and no prefill shows one."""
    who = case.who
    line = next((event for event in case.room_events.by("prefill") if event.row.cause == LEG_MISSING), None)
    if line is None or who.requested is not None or "requested" in who.several or who.arrived is not None:
        return None
    proof = Proof(f"{line.instance} got the page list and no request", line)
    sent = case.deployment.at_url(who.url) if who.url else None
    if sent is not None and sent.name != line.instance:
        why = f"the router sent the request to {sent.name}, and the page list went to {line.instance}"
        return _misled(case, sent, case.deployment.instances.get(line.instance), (proof,), why)
    why = f"{line.instance} got the page list of this room and no request, and no other prefill shows one"
    fills = {"missing": line.instance, "url": "http://ROUTER"}
    return CauseFinding(LEG_MISSING, "router" if case.routed else "", why, (proof,), line.instance, fills)


def _misled(
    case: Case,
    requested: ObservedInstance | None,
    contacted: ObservedInstance | None,
    proofs: tuple[Proof, ...],
    why: str,
) -> CauseFinding:
    """The finding: the port the router sent for `requested`, against the ports the prefills listen on."""
    port, said = _sent(case, requested)
    own = requested.bootstrap_port if requested else None
    other = contacted.bootstrap_port if contacted else None
    name = requested.name if requested else case.who.url or "the prefill with the request"
    there = f"{other} ({contacted.name})" if other and contacted else contacted.name if contacted else "another"
    fills = {
        "instance": name, "other": contacted.name if contacted else "", "prefill": name,
        "contacted": contacted.name if contacted else "", "url": case.who.url or f"<URL of {name}>",
        "port": str(own or "<its bootstrap port>"), "observed": there, "expected": str(own) if own else name,
    }  # fmt: skip
    where = contacted.name if contacted else ""
    proofs = (*proofs, *said)
    sender = _sender(case, requested, port)
    fills["sender"] = sender.name
    fix = sender.fix(case, requested)
    if port == "null":
        why = f"{why}: {sender.name} sends no bootstrap port, and the decode puts in its own"
        return CauseFinding("PD201", sender.side, why, proofs, name, fills, fix)
    sent = numerals.whole(port)
    if sent is not None:
        fills["observed"] = port
        if own is not None and sent != own:
            swapped = sent == other and _listed_port(case, contacted)[0] == str(own)
            code = "PD203" if swapped and sender.side else "PD202"
            why = f"{why}: {sender.name} sends port {port} for {name}, which listens on {own}"
            return CauseFinding(code, sender.side, why, proofs, name, fills, fix)
    return CauseFinding("PD701", sender.side, why, proofs, where, fills, fix)


class Sender(NamedTuple):
    """Who sent the request, as far as lines show: "router", or `side` "" if it may have been anybody."""

    side: str

    @property
    def name(self) -> str:
        return "the router" if self.side else "an unknown sender (no router's line shows this request)"

    def fix(self, case: Case, prefill: ObservedInstance | None) -> str:
        if self.side:
            return router_command(case.deployment)
        name = prefill.name if prefill else "the prefill that gets it"
        port = prefill.bootstrap_port if prefill and prefill.bootstrap_port else f"{PLACEHOLDER}{name}>"
        url, port = pasteable(f"<URL of {name}>"), pasteable(str(port))
        return f"send both legs with bootstrap_port {port} (a router does so with --prefill {url} {port})"


def _sender(case: Case, prefill: ObservedInstance | None, port: str) -> Sender:
    """The router if its lines name the room, can be about it, or list this port ("null" or digits) for this prefill."""
    listed = (one.port for one, _ in _listed(case, prefill))
    same = any(port in ("", "null" if each is None else str(each)) for each in listed)
    return Sender("router" if case.routed or same else "")


def _sent(case: Case, instance: ObservedInstance | None) -> tuple[str, tuple[Proof, ...]]:
    """The bootstrap port this prefill's requests carry ("null", digits, or "" if no line says), and its proof."""
    for event in case.room_events.events:
        if event.proves(Sign.REQUEST_ARRIVED) and event.values.get("port"):
            port = "null" if event.values["port"] == "None" else event.values["port"]
            carried = Proof(f"the request carried bootstrap port {port}", event)
            listed, start = _listed_port(case, instance)
            same = listed == port and not case.room_events.by("router")
            return port, (carried, *start) if same else (carried,)
    own = [event for event in case.room_events.by("router") if "addr" in event.values]
    if own:
        address = parse_address(own[0].values["addr"])
        port = "null" if address is None or address.port is None else str(address.port)
        return port, (Proof(f"the router sent bootstrap port {port}", own[0]),)
    return _listed_port(case, instance)


def _listed_port(case: Case, instance: ObservedInstance | None) -> tuple[str, tuple[Proof, ...]]:
    """The same, as the router's start line lists it."""
    ports = {("null" if one.port is None else str(one.port)): start for one, start in _listed(case, instance)}
    if len(ports) != 1:
        return "", ()
    port, start = next(iter(ports.items()))
    return port, (Proof(f"the router was started with bootstrap port {port} for it", start),) if start else ()


def _listed(case: Case, instance: ObservedInstance | None) -> list[tuple[ListedPrefill, Event | None]]:
    """The entries of the routers' lists that can be this prefill: its own, else those of unknown owners, else all."""
    entries = [(one, router.start) for router in case.deployment.routers for one in router.prefills]
    mine = [entry for entry in entries if instance and case.deployment.at_url(entry[0].url) is instance]
    return mine or [entry for entry in entries if case.deployment.at_url(entry[0].url) is None] or entries


def unreachable(case: Case) -> CauseFinding | None:
    """The decode found no bootstrap server where the request sent it."""
    failed = case.decode_failed
    if failed is None or not failed.proves(Sign.GAVE_UP_UNMET):
        return None
    if message_details.NO_ADDRESS in failed.text:
        return _no_address(case, failed)
    if failed.t is None:
        return None
    found = case.dialled(failed)
    if found is None:
        return None
    address, line = found
    answer = case.answered(failed, address)
    if answer is not None:
        return _unusable(case, address, answer, failed)
    proofs = (Proof(f"nobody answered at {address}", line), Proof("so the decode gave the room up", failed))
    owner = case.deployment.bootstrap_owner(address)
    if owner is not None:
        return None if owner.name in case.deaths else _silent(case, owner, address, proofs)
    asked = case.prefill
    port, said = _sent(case, asked)
    own = asked.bootstrap_port if asked else None
    name = asked.name if asked else case.who.url or "the prefill"
    fills = {
        "instance": name, "prefill": name, "observed": str(address), "expected": str(own or "its own port"),
        "url": case.who.url or "", "port": str(own or ""),
    }  # fmt: skip
    sender = _sender(case, asked, port if port == "null" else str(address.port))
    fills["sender"] = sender.name
    fix = sender.fix(case, asked)
    if port == "null":
        why = f"{sender.name} sends no bootstrap port, the decode puts in its own, and nobody listens on {address}"
        return CauseFinding("PD201", sender.side, why, (*proofs, *said), name, fills, fix)
    if own is not None and address.port != own:
        fills["observed"] = str(address.port)
        code = "PD206" if asked and asked.port == address.port else "PD202"
        why = f"the decode was sent to port {address.port}, {name}'s bootstrap server listens on {own}"
        return CauseFinding(code, sender.side, why, (*proofs, *said), name, fills, fix)
    why = f"nothing answers at {address}, where the request sent the decode"
    fix = f"curl -sS http://{pasteable(address)}/health   # from the decode's host"
    side = "prefill" if own is not None else ""  # its own log names this port; else the address may be wrong
    return CauseFinding("PD205", side, why, (*proofs, *said), name, fills, fix)


def _no_address(case: Case, failed: Event) -> CauseFinding:
    """What the request gave as the bootstrap address is none, so the decode dialled nobody."""
    told = message_details.looked_up(failed.text) or "what the request gave"
    sender = _sender(case, None, told)
    why = f"the decode was sent to {told}, which is not an address (host:port); {sender.name} gave it"
    fills = {"instance": "the request", "observed": f"{told} is not an address"}
    fix = "send bootstrap_host as a host name or IP address alone, without user, scheme or port"
    return CauseFinding("PD205", sender.side, why, (Proof("the decode gave the room up", failed),), "", fills, fix)


def _unusable(case: Case, address: HostPort, answer: tuple[str, Event], failed: Event) -> CauseFinding:
    """A server answered: it waits for its ranks, it is not the right bootstrap server, or something else refused."""
    status, line = answer
    owner = case.deployment.bootstrap_owner(address)
    name = owner.name if owner else case.prefill.name if case.prefill else str(address)
    proofs = (Proof(f"{address} answered {status}", line), Proof("so the decode gave the room up", failed))
    fills = {"instance": name, "prefill": name, "observed": f"some ({status})", "expected": "its"}
    if message_details.UNREGISTERED in line.text:
        why = f"{address} answered {status}: not all ranks of {name} had registered"
        return CauseFinding("PD209", "prefill", why, proofs, name, fills)
    asked = case.prefill
    if asked is not None and asked.bootstrap_port not in (None, address.port):
        port, said = _sent(case, asked)
        code = "PD201" if port == "null" else "PD206" if asked.port == address.port else "PD202"
        fills |= {
            "observed": str(address.port),
            "expected": str(asked.bootstrap_port),
            "port": str(asked.bootstrap_port),
        }
        sender = _sender(case, asked, port if port == "null" else str(address.port))
        fills |= {"instance": asked.name, "prefill": asked.name, "url": case.who.url or "", "sender": sender.name}
        why = f"{address} answered {status}, and {asked.name}'s bootstrap server listens on {asked.bootstrap_port}"
        return CauseFinding(code, sender.side, why, (*proofs, *said), asked.name, fills, sender.fix(case, asked))
    why = (
        f"{address} answered {status} where the decode asked for the ranks of {name}: another server, a proxy before "
        "it, or an error of its own"
    )
    fills |= {"observed": f"{address} answered {status}", "host": address.host, "port": str(address.port)}
    return CauseFinding("PD205", "prefill" if owner else "", why, proofs, name, fills)


def _silent(case: Case, owner: ObservedInstance, address: HostPort, proofs: tuple[Proof, ...]) -> CauseFinding:
    fills = {"instance": owner.name, "prefill": owner.name, "observed": str(address), "expected": str(address)}
    why = f"{owner.name} is up and owns {address}, but the decode cannot reach it"
    return CauseFinding(
        "PD205", "prefill", why, proofs, owner.name, fills, f"curl -sS http://{pasteable(address)}/health"
    )


class DialledPrefill(NamedTuple):
    """An entry of the router's list: whose it is, and the bootstrap port at which the decode looks for it.

    port None: no line says which port the decode uses in place of the router's null.
    """

    entry: ListedPrefill
    owner: ObservedInstance | None
    port: int | None

    @property
    def home(self) -> bool | None:
        """Whether that is its own bootstrap server; None if the logs do not say."""
        own = self.owner.bootstrap_port if self.owner else None
        return None if own is None or self.port is None else own == self.port

    @property
    def name(self) -> str:
        return self.owner.name if self.owner else self.entry.url


def destinations(case: Case, router: RouterWorkers) -> list[DialledPrefill]:
    """One entry for each prefill to which the request can have been sent."""
    default = case.decode.default_port if case.decode else None
    entries = [one for one in router.prefills if one.url == case.who.url] or router.prefills
    found = []
    for one in entries:
        address = sent_address(one, default)
        found.append(DialledPrefill(one, case.deployment.at_url(one.url), address.port if address else None))
    return found


def misdirected(case: Case) -> CauseFinding | None:
    """Whichever prefill had the request, the decode was sent to a port other than the one in that prefill's own log."""
    router, failed = case.router, case.decode_failed or case.prefill_failed
    known = case.who.requested or case.who.arrived
    if router is None or router.cut or failed is None or known is not None or not _met(case):
        return None
    if not sends_its_list(router, case.deployment):
        return None
    found = destinations(case, router)
    if not found or any(one.home is not False for one in found):
        return None
    first = found[0]
    other = next((one for one in found if one.owner and one.owner.bootstrap_port == first.port), None)
    swapped = other is not None and first.owner is not None and other.port == first.owner.bootstrap_port
    nulls = all(one.entry.port is None for one in found)
    code = "PD201" if nulls else "PD203" if swapped else "PD202"
    ports = ", ".join(f"{one.port or 'null'} for {one.name}" for one in found)
    own = ", ".join(f"{one.name} on {one.owner.bootstrap_port}" for one in found if one.owner)
    proofs = [Proof(f"the router was started with these ports: {ports}", router.start)] if router.start else []
    for one in found:
        start = _start(case, one.owner)
        proofs += [Proof(f"{one.name} listens on {one.owner.bootstrap_port}", start)] if start and one.owner else []
    proofs.append(Proof("no cache came until it was given up", failed))
    sends = f"the decode puts in its own port, {first.port}" if nulls else f"the router sends port {ports}"
    why = f"{sends}; the bootstrap servers listen elsewhere: {own}: whichever had this request, the decode missed it"
    fills = {
        "instance": first.name, "other": other.name if other else "", "observed": str(first.port),
        "url": first.entry.url, "expected": str(first.owner.bootstrap_port) if first.owner else "",
    }  # fmt: skip
    return CauseFinding(code, "router", why, tuple(proofs), first.name, fills, router_command(case.deployment))


def _met(case: Case) -> bool:
    """Whether the decode did not fail at finding a prefill; that failure has its own cause."""
    failed = case.decode_failed
    return failed is None or not failed.proves(Sign.GAVE_UP_UNMET)


def _start(case: Case, instance: ObservedInstance | None) -> Event | None:
    """The line of the instance's log that names its bootstrap port."""
    names = "" if instance is None else instance.name
    return next((event for event in case.around if event.instance == names and event.proves(Sign.BOOTSTRAP_PORT)), None)


def null_ports(case: Case) -> CauseFinding | None:
    """The router sends nulls, and a decode waited in vain: its page list had gone to another prefill.

    If the list has two prefills and one got the page list but no request, the other one had the request.
    """
    router, failed = case.router, case.decode_failed
    if case.who.requested is not None or router is None or failed is None or case.prefill_failed:
        return None
    if not sends_its_list(router, case.deployment):
        return None
    timed_out = bool(seconds_waited(failed)) or failed.proves(Sign.GAVE_UP_WAITING)
    entries = router.prefills
    if not timed_out or any(one.port is not None for one in entries) or (len(entries) < 2 and not router.cut):
        return None
    found = destinations(case, router)
    # If each prefill has its own host, every null leads to the prefill it was meant for, or to nobody.
    if (
        all(one.home for one in found)
        or (on_hosts_of_their_own(entries) and not router.cut)
        or case.unequal_attention_tp is not None
    ):
        return None
    met = case.who.contacted
    asked = _by_elimination(case, router, found, met) if met is not None else None
    proofs = [
        *([Proof(f"{met.value} got the page list: {met.why}", met.events[0])] if met is not None else []),
        Proof("no cache came until the decode gave up", failed),
        *([Proof("the router was started without bootstrap ports", router.start)] if router.start else []),
    ]
    victim, why = _why_null(case, router, found, met, asked)
    contacted = case.deployment.instances.get(met.value) if met is not None else None
    there = contacted.bootstrap_port if contacted else None
    owner = case.deployment.instances.get(asked.value if asked is not None else victim)
    unknown = "the prefill's" if met is None else "the prefill that has the request"
    fills = {
        "instance": victim or _every(router, found),
        "observed": f"{there} ({met.value})" if there and met else met.value if met else "its own default port",
        "expected": str(owner.bootstrap_port) if owner and owner.bootstrap_port else victim or unknown,
    }  # fmt: skip
    fix = router_command(case.deployment)
    return CauseFinding("PD201", "router", why, tuple(proofs), asked.value if asked else "", fills, fix, asked)


def _by_elimination(
    case: Case, router: RouterWorkers, found: Sequence[DialledPrefill], met: Conclusion
) -> Conclusion | None:
    """The other of two prefills, if the one that got the page list shows no request for this room.

    Its silence counts only if its own lines report the page list: at that level it would have logged the cache, too.
    Nothing follows if a router attempt that can be this room went to a prefill other than the remaining one.
    """
    if not _logs_page_lists(case, met):
        return None
    prefills = [one.name for one in case.deployment.prefills]
    others = [name for name in prefills if name != met.value]
    if router.cut or len(router.prefills) != 2 or len(prefills) != 2 or len(others) != 1 or case.who.several:
        return None
    owners = {one.owner.name: one for one in found if one.owner is not None}
    if not set(owners) <= set(prefills) or (others[0] in owners and owners[others[0]].home):
        return None
    sent = [case.deployment.at_url(one.prefill) for one in case.joined.attempts if one.prefill]
    if any(one is None or one.name != others[0] for one in sent):
        return None
    why = (
        f"by elimination: the router has two prefills, and {met.value} got the page list and shows no request for this "
        "room; no line says so outright"
    )
    lines = (*([router.start] if router.start else []), *met.events[:1])
    return Conclusion(others[0], why, lines, by_elimination=True)


def _logs_page_lists(case: Case, met: Conclusion) -> bool:
    return any(event.instance == met.value and shows_page_list(event) for event in case.room_events.events)


def _silence_tells(case: Case, met: Conclusion) -> bool:
    """Whether the contacted prefill has not had the request either: one that froze would be silent of it, too."""
    reached, end = case.deployment.instances.get(met.value), case.decode_failed
    alive = reached is None or end is None or end.t is None or reached.lived_past(end.t)
    return alive or _logs_page_lists(case, met)


def _why_null(
    case: Case, router: RouterWorkers, found: Sequence[DialledPrefill], met: Conclusion | None, asked: Conclusion | None
) -> tuple[str, str]:
    """The waiting prefill, "" if it cannot be named, and why."""
    nulls = "the router sends no bootstrap port, and the decode puts in its own, which is one prefill's at most"
    if met is None:
        return "", f"{nulls}; no line says which prefill had this request, nor which one got the page list"
    if asked is not None:
        why = (
            f"{asked.value} waits for a page list that went to {met.value}: {nulls}; {asked.value} is named {asked.why}"
        )
        return asked.value, why
    if not _silence_tells(case, met):
        here = f"{met.value}, whose log ends before the decode gave up"
        return "", f"{nulls}; the page list went to {here}: no line says whether it had the request too"
    silent = f"{nulls}; the page list went to {met.value}, which shows no request for this room"
    left = [one for one in found if one.name != met.value]
    if not router.cut and len(found) == 2 and len(left) == 1:
        log = "whose log is not here" if left[0].owner is None else "whose log says nothing of it"
        return left[0].name, f"{silent}: by elimination the request went to {left[0].name}, {log}"
    others = [one.name for one in case.deployment.prefills if one.name != met.value]
    here = f": of those whose logs are here, that leaves {others[0]}" if len(others) == 1 else ""
    return "", f"{silent}: it went to another one, and no line says to which{here}"


def _every(router: RouterWorkers, found: Sequence[DialledPrefill]) -> str:
    names = list(dict.fromkeys(one.name for one in found))
    return " and ".join(names[:MOST_NAMED]) + (" and others" if router.cut or len(names) > MOST_NAMED else "")
