"""What the router's list makes of every request this one can be, where no line says which prefill had it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sign import Sign
from pdctl.trace import signs
from pdctl.trace.case import Case, Finding, Proof
from pdctl.trace.causes.mismatches import attention_tp
from pdctl.trace.known import Known
from pdctl.trace.routing import router_command
from pdctl.trace.story import waited
from pdctl.trace.upstreams import apart, sent_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engines.identify import Target
    from pdctl.logs.event import Event
    from pdctl.trace.deployment import Instance
    from pdctl.trace.upstreams import Router


MOST = 4  # prefills named in one sentence


class Destination(NamedTuple):
    """An entry of the router's list: whose it is, and the bootstrap port at which its decode looks for it.

    port None: nobody tells what the decode puts in for the router's null.
    """

    entry: Target
    owner: Instance | None
    port: int | None

    @property
    def home(self) -> bool | None:
        """Whether that is its own bootstrap server; None where the logs do not tell."""
        own = self.owner.bootstrap_port if self.owner else None
        return None if own is None or self.port is None else own == self.port

    @property
    def name(self) -> str:
        return self.owner.name if self.owner else self.entry.url


def destinations(case: Case, router: Router) -> list[Destination]:
    """Of all prefills the request can have been sent to."""
    default = case.decode.default_port if case.decode else None
    entries = [one for one in router.prefills if one.url == case.who.url] or router.prefills
    found = []
    for one in entries:
        address = sent_address(one, default)
        found.append(Destination(one, case.deployment.at_url(one.url), address.port if address else None))
    return found


def misdirected(case: Case) -> Finding | None:
    """Whichever prefill had the request, its decode was sent to another port than the prefill's own log names."""
    router, failed = case.router, case.decode_failed or case.prefill_failed
    known = case.who.requested or case.who.arrived
    if router is None or router.cut or failed is None or known is not None or not _met(case):
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
    return Finding(code, "router", why, tuple(proofs), first.name, fills, router_command(case.deployment))


def _met(case: Case) -> bool:
    """The decode looked for a prefill and found one: what it found nobody at has a cause of its own."""
    failed = case.decode_failed
    return failed is None or not failed.proves(Sign.GAVE_UP_UNMET)


def _start(case: Case, instance: Instance | None) -> Event | None:
    """The line of its log that names its bootstrap port."""
    names = "" if instance is None else instance.name
    return next((event for event in case.around if event.instance == names and event.proves(Sign.BOOTSTRAP_PORT)), None)


def null_ports(case: Case) -> Finding | None:
    """The router sends nulls, and a decode that had sent its page list waited in vain: for a cache of another prefill.

    Who had the request follows where the list has two prefills, and one of them got the page list and no request.
    """
    router, failed = case.router, case.decode_failed
    if case.who.requested is not None or router is None or failed is None or case.prefill_failed:
        return None
    timed_out = bool(waited(failed)) or failed.proves(Sign.GAVE_UP_WAITING)
    entries = router.prefills
    if not timed_out or any(one.port is not None for one in entries) or (len(entries) < 2 and not router.cut):
        return None
    found = destinations(case, router)
    # On hosts of their own every null leads to the prefill it was meant for, or to nobody.
    if all(one.home for one in found) or (apart(entries) and not router.cut) or attention_tp(case) is not None:
        return None
    met = case.who.contacted
    asked = _left_over(case, router, found, met) if met is not None else None
    proofs = [
        *([Proof(f"{met.value} got the page list: {met.why}", met.events[0])] if met is not None else []),
        Proof("no cache came until the decode gave up", failed),
        *([Proof("the router was started without bootstrap ports", router.start)] if router.start else []),
    ]
    victim, why = _told(case, router, found, met, asked)
    contacted = case.deployment.instances.get(met.value) if met is not None else None
    there = contacted.bootstrap_port if contacted else None
    owner = case.deployment.instances.get(asked.value) if asked is not None else None
    fills = {
        "instance": victim or _every(router, found),
        "observed": f"{there} ({met.value})" if there and met else met.value if met else "its own default port",
        "expected": str(owner.bootstrap_port) if owner and owner.bootstrap_port else victim or "the prefill's",
    }  # fmt: skip
    fix = router_command(case.deployment)
    return Finding("PD201", "router", why, tuple(proofs), asked.value if asked else "", fills, fix, asked)


def _left_over(case: Case, router: Router, found: Sequence[Destination], met: Known) -> Known | None:
    """The other of two prefills, where the one that got the page list shows no request for this room.

    Its silence counts where its own lines tell of the page list: at that level it would have told of the cache, too.
    Nothing follows where an attempt of the router that can be this room went to another prefill than the one left.
    """
    if not any(event.instance == met.value and signs.contacted(event) for event in case.story.events):
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
    return Known(others[0], why, lines, by_elimination=True)


def _told(
    case: Case, router: Router, found: Sequence[Destination], met: Known | None, asked: Known | None
) -> tuple[str, str]:
    """The prefill that waits, "" where it cannot be named, and why."""
    nulls = "the router sends no bootstrap port, and the decode puts in its own, which is one prefill's at most"
    if met is None:
        return "", f"{nulls}; no line says which prefill had this request, nor which one got the page list"
    if asked is not None:
        why = (
            f"{asked.value} waits for a page list that went to {met.value}: {nulls}; {asked.value} is named {asked.why}"
        )
        return asked.value, why
    silent = f"{nulls}; the page list went to {met.value}, which shows no request for this room"
    left = [one for one in found if one.name != met.value]
    if not router.cut and len(found) == 2 and len(left) == 1:
        return left[0].name, f"{silent}: by elimination the request went to {left[0].name}, whose log is not here"
    others = [one.name for one in case.deployment.prefills if one.name != met.value]
    here = f": of those whose logs are here, that leaves {others[0]}" if len(others) == 1 else ""
    return "", f"{silent}: it went to another one, and no line says to which{here}"


def _every(router: Router, found: Sequence[Destination]) -> str:
    names = list(dict.fromkeys(one.name for one in found))
    return " and ".join(names[:MOST]) + (" and others" if router.cut or len(names) > MOST else "")


CAUSES = (misdirected, null_ports)
