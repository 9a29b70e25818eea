"""The decode looked for the prefill's bootstrap server in the wrong place: null, wrong and swapped ports, dead ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace.addresses import Address, parse
from pdctl.trace.case import NEAR, Case, Finding, Proof
from pdctl.trace.routing import router_command

if TYPE_CHECKING:
    from pdctl.engines.identify import Target
    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Instance


def crossed(case: Case) -> Finding | None:
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


def _misled(
    case: Case, requested: Instance | None, contacted: Instance | None, proofs: tuple[Proof, ...], why: str
) -> Finding:
    """The port that led there: what the router sent for `requested`, against what each prefill listens on."""
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
    fix = router_command(case.deployment)
    if port == "null":
        why = f"{why}: the router sends no bootstrap port, and the decode puts in its own"
        return Finding("PD201", "router", why, proofs, name, fills, fix)
    sent = numerals.whole(port)
    if sent is not None:
        fills["observed"] = port
        if own is not None and sent != own:
            swapped = sent == other and _told(case, contacted)[0] == str(own)
            code = "PD203" if swapped else "PD202"
            why = f"{why}: the router sends port {port} for {name}, which listens on {own}"
            return Finding(code, "router", why, proofs, name, fills, fix)
    return Finding("PD701", "router", why, proofs, where, fills, fix)


def _sent(case: Case, instance: Instance | None) -> tuple[str, tuple[Proof, ...]]:
    """The bootstrap port this prefill's requests carry: "null", digits, or "" when no line says."""
    for event in case.story.events:
        if event.proves(Sign.REQUEST_ARRIVED) and event.values.get("port"):
            port = "null" if event.values["port"] == "None" else event.values["port"]
            return port, (Proof(f"the request carried bootstrap port {port}", event),)
    own = [event for event in case.story.by("router") if "addr" in event.values]
    if own:
        address = parse(own[0].values["addr"])
        port = "null" if address is None or address.port is None else str(address.port)
        return port, (Proof(f"the router sent bootstrap port {port}", own[0]),)
    return _told(case, instance)


def _told(case: Case, instance: Instance | None) -> tuple[str, tuple[Proof, ...]]:
    """As the router's start line lists it."""
    ports = {("null" if one.port is None else str(one.port)): start for one, start in _listed(case, instance)}
    if len(ports) != 1:
        return "", ()
    port, start = next(iter(ports.items()))
    return port, (Proof(f"the router was started with bootstrap port {port} for it", start),) if start else ()


def _listed(case: Case, instance: Instance | None) -> list[tuple[Target, Event | None]]:
    """The entries of the routers' lists that can be this prefill: its own, or all while nobody can tell."""
    entries = [(one, router.start) for router in case.deployment.routers for one in router.prefills]
    mine = [entry for entry in entries if instance and case.deployment.at_url(entry[0].url) is instance]
    return mine or [entry for entry in entries if case.deployment.at_url(entry[0].url) is None] or entries


def unreachable(case: Case) -> Finding | None:
    """The decode found no bootstrap server where the request sent it."""
    failed = case.decode_failed
    if failed is None or not failed.proves(Sign.GAVE_UP_UNMET) or failed.t is None:
        return None
    found = dialled(case, failed)
    if found is None:
        return None
    address, line = found
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
    fix = router_command(case.deployment)
    if port == "null":
        why = f"the router sends no bootstrap port, the decode puts in its own, and nobody listens on {address}"
        return Finding("PD201", "router", why, (*proofs, *said), name, fills, fix)
    if own is not None and address.port != own:
        fills["observed"] = str(address.port)
        code = "PD206" if asked and asked.port == address.port else "PD202"
        why = f"the decode was sent to port {address.port}, {name}'s bootstrap server listens on {own}"
        return Finding(code, "router", why, (*proofs, *said), name, fills, fix)
    why = f"nothing listens at {address}, where the request sent the decode"
    fix = f"curl -sS http://{address}/health   # from the decode's host"
    return Finding("PD205", "prefill", why, (*proofs, *said), name, fills, fix)


def _silent(case: Case, owner: Instance, address: Address, proofs: tuple[Proof, ...]) -> Finding:
    fills = {"instance": owner.name, "prefill": owner.name, "observed": str(address), "expected": str(address)}
    why = f"{owner.name} is up and owns {address}, but the decode cannot reach it"
    return Finding("PD205", "prefill", why, proofs, owner.name, fills, f"curl -sS http://{address}/health")


def dialled(case: Case, failed: Event) -> tuple[Address, Event] | None:
    """The address the decode could not reach while the room waited; None when its lines name several."""
    assert failed.t is not None
    own = parse(failed.values.get("addr", ""))
    if own is not None and failed.row.cause == "PD210":
        return None  # a rank's own port, which the bootstrap server gave
    if own is not None:
        return own, failed
    span = case.story.span
    since = (span[0] if span else failed.t) - NEAR
    lines = case.lines(failed.instance, (Sign.BOOTSTRAP_DIALLED,), since, failed.t)
    found: dict[Address, Event] = {}
    for event in sorted(lines, key=lambda line: line.place.offset):
        if event.place.file == failed.place.file and event.place.offset > failed.place.offset and found:
            break
        address = parse(event.values["addr"]) if "addr" in event.values else _named(event)
        if address is not None:
            found[address] = event
    return next(iter(found.items())) if len(found) == 1 else None


def _named(event: Event) -> Address | None:
    host, port = event.values.get("host"), numerals.whole(event.values.get("port"))
    return Address(host, port) if host and port is not None else None


CAUSES = (crossed, unreachable)
