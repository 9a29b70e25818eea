"""The workers a router hands out, and where a decode looks for the bootstrap server of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.trace.addresses import Address, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.dialect.identify import Identity, Target
    from pdctl.logs.event import Event

REHEARSED = "rehearsal-starting"  # has the ports that are really sent; the usual line behind it has the right ones
LISTS = frozenset({"router-starting", "workers-initialising", "router-targets", "listening", REHEARSED})


class Router(NamedTuple):
    """`start`: the line that lists its workers, None when it was not found again."""

    name: str
    prefills: tuple[Target, ...]
    decodes: tuple[str, ...]
    start: Event | None


def routers_of(name: str, identity: Identity, starts: Iterable[Event]) -> tuple[Router, ...]:
    """One for each time the router was started with other workers, in order; none when the log is no router's."""
    if not identity.prefills:
        return ()
    found: list[Router] = []
    for event in starts:
        if event.row.id not in LISTS or "prefill" not in event.values:
            continue
        facts = {"prefill": event.values["prefill"], "decode": event.values.get("decode", "")}
        told = replace(identity, facts=facts)
        last = found[-1] if found else None
        if last is not None and (last.start is None or last.start.row.id == REHEARSED) and event.row.id == "listening":
            continue
        if last is None or (last.prefills, last.decodes) != (told.prefills, told.decodes):
            found.append(Router(name, told.prefills, told.decodes, event))
    return tuple(found) or (Router(name, identity.prefills, identity.decodes, None),)


def sent_address(upstream: Target, default_port: int | None) -> Address | None:
    """The router's host and port for this prefill; where it sends a null, the decode puts in its own port."""
    host = parse(upstream.url)
    port = upstream.port if upstream.port is not None else default_port
    return None if host is None or port is None else Address(host.host, port)
