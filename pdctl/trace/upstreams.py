"""The workers a router hands out, and where a decode looks for the bootstrap server of each."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sign import Sign
from pdctl.trace.addresses import LOOPBACKS, Address, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engines.identify import Identity, Target
    from pdctl.logs.event import Event


class Router(NamedTuple):
    """`start`: the line that lists its workers, None when it was not found again. cut: it names not all prefills."""

    name: str
    prefills: tuple[Target, ...]
    decodes: tuple[str, ...]
    start: Event | None
    cut: bool = False


def routers_of(name: str, identity: Identity, starts: Iterable[Event]) -> tuple[Router, ...]:
    """One for each time the router was started with other workers, in order; none when the log is no router's."""
    if not identity.prefills:
        return ()
    found: list[Router] = []
    for event in starts:
        if not event.proves(Sign.WORKERS):
            continue
        told = _told(name, identity, event)
        last = found[-1] if found else None
        if event.proves(Sign.DECODES_PRINTED):
            if last is not None and not last.decodes:
                found[-1] = last._replace(decodes=told.decodes)
            continue
        again = last is not None and (last.start is None or last.start.proves(Sign.WORKERS_REHEARSED))
        if again and event.proves(Sign.WORKERS_AGAIN):
            continue
        if last is not None and _same(last, told):
            found[-1] = _fuller(last, told)
        else:
            found.append(told)
    if found:
        return tuple(found)
    return (Router(name, identity.prefills, identity.decodes, None, _cut(identity.facts.get("prefill", ""), None)),)


def _told(name: str, identity: Identity, event: Event) -> Router:
    listed = event.values.get("prefill", "")
    told = replace(identity, facts={"prefill": listed, "decode": event.values.get("decode", "")})
    return Router(name, told.prefills, told.decodes, event, _cut(listed, event))


def _cut(listed: str, event: Event | None) -> bool:
    """The list ends in dots, or in the middle; dots inside a URL are a page's way to leave that out."""
    rest = _QUOTED.sub("", listed)
    return "…" in rest or "..." in rest or (event is not None and f"{listed}]" not in event.text)


def _same(one: Router, other: Router) -> bool:
    """Two lines of one start; one of them may leave its decodes out, or be cut."""
    short, long = sorted((one.prefills, other.prefills), key=len)
    prefills = short == long or ((one.cut or other.cut) and long[: len(short)] == short)
    return prefills and (one.decodes == other.decodes or not one.decodes or not other.decodes)


def _fuller(one: Router, other: Router) -> Router:
    """The first line, unless the second one says more."""
    more = (one.cut and not other.cut) or (other.decodes and not one.decodes) or one.start is None
    if more or (one.start is not None and one.start.proves(Sign.WORKERS_PRINTED) and other.start is not None):
        return other._replace(decodes=other.decodes or one.decodes)
    return one


def sent_address(upstream: Target, default_port: int | None) -> Address | None:
    """The router's host and port for this prefill; where it sends a null, the decode puts in its own port."""
    host = parse(upstream.url)
    port = upstream.port if upstream.port is not None else default_port
    return None if host is None or port is None else Address(host.host, port)


def apart(prefills: Iterable[Target]) -> bool | None:
    """Whether every prefill has a host of its own, as far as the URLs tell; None where a page left them out.

    A decode puts its own port behind the host it was sent: a null can lead to another prefill on one host only.
    """
    hosts = [address.host if address is not None else "" for address in (parse(one.url) for one in prefills)]
    if not all(_HOST.fullmatch(host) for host in hosts):
        return None
    return len({"loopback" if host in LOOPBACKS else host for host in hosts}) == len(hosts)


_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_HOST = re.compile(r"[\w.:-]*\w[\w.:-]*")
