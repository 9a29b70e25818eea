"""Bootstrap servers as they are now: what listens where one should, the ranks it names, and which are reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING

from pdctl.fleet import document, prober
from pdctl.fleet.address import LAST_PORT, join
from pdctl.fleet.bootstrap import MAX_RANKS, NEW, OLD, Style, counted, ranks_of
from pdctl.fleet.deadline import Deadline, each
from pdctl.fleet.dial import dial
from pdctl.fleet.facts import Bootstrap, RankAddress, Reply
from pdctl.fleet.listeners import is_listening
from pdctl.fleet.prober import Prober
from pdctl.fleet.server_info import PATHS as INFO_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.fleet.http import Answer

AT_ONCE = 64  # servers, later ranks, looked at together
PATIENCE = 5.0  # seconds for one look, as long as a decode waits for one
STYLES = {style.name: style for style in (NEW, OLD)}


@dataclass(frozen=True, slots=True)
class Claim:
    """Where a prefill's bootstrap server is said to be, and who says so (see facts.Bootstrap).

    ranks: how many registrations it owes, None: only it knows.
    """

    prefill: str
    host: str
    port: int
    claimed_by: tuple[str, ...]
    ranks: int | None = None


def probe_bootstraps(
    claims: Sequence[Claim], deadline: float, *, patience: float = PATIENCE, at_once: int = AT_ONCE
) -> tuple[Bootstrap, ...]:
    """One Bootstrap per claim, in order, within `deadline` seconds."""
    whole = Deadline(deadline)
    probing = Prober(whole, patience)
    servers = each(lambda claim: _server(claim, probing), claims, at_once, whole)
    todo = [(number, ranks) for number, server in enumerate(servers) for ranks in _ranks(server)]
    named = each(lambda one: _rank(servers[one[0]], one[1], probing, patience), todo, at_once, whole)
    found: list[list[RankAddress | str]] = [[] for _ in servers]
    for (number, _), address in zip(todo, named, strict=True):
        found[number].append(address)
    return tuple(map(_with_ranks, servers, found))


def _server(claim: Claim, probing: Prober) -> Bootstrap:
    base = join(claim.host, claim.port)
    bare = Bootstrap(claim.prefill, claim.host, claim.port, claim.claimed_by, False, "", expected=claim.ranks)
    health, route = probing.ask_all(base, ("/health", NEW.query()))
    seen = replace(bare, health=prober.reply("/health", health), route=prober.reply(NEW.query(), route))
    if not health.reached and not route.reached:
        return replace(seen, reason=health.reason)
    if route.status == 400:
        old = probing.look(base, OLD.query())
        if old.ok and not set(OLD.sizes).isdisjoint(document.mapping(old.body)):
            return _bootstrap(replace(seen, route=old), OLD)
    elif route.ok and NEW.layout(document.mapping(seen.route.body if seen.route else None)):
        return _bootstrap(seen, NEW)
    elif counted(route.text) is not None:
        return replace(_bootstrap(seen, NEW), registered=counted(route.text), reason=prober.refusal(route))
    return _something_else(seen, base, route, probing)


def _bootstrap(seen: Bootstrap, style: Style) -> Bootstrap:
    topology = document.mapping(seen.route.body if seen.route else None)
    layout = style.layout(topology)
    expected = seen.expected if seen.expected is not None or layout is None else ranks_of(layout)
    # A release that counts answers only when all are there; the others are counted rank by rank.
    registered = ranks_of(layout) if layout and style is NEW else None if layout else 0
    reason = "" if layout else "no rank has registered"
    return replace(
        seen,
        reached=True,
        reason=reason,
        style=style.name,
        serves="bootstrap",
        registered=registered,
        expected=expected,
        topology=topology,
    )


def _something_else(seen: Bootstrap, base: str, route: Answer, probing: Prober) -> Bootstrap:
    """Tells an engine's HTTP port from others: the commonest wrong number."""
    for path in INFO_PATHS:
        look = probing.look(base, path)
        mode = document.mapping(look.body).get("disaggregation_mode")
        if look.ok and mode is not None:
            said = document.excerpt(document.text(mode))
            reason = f"this is the HTTP port of an engine (disaggregation_mode {said}), not a bootstrap server"
            return replace(seen, reached=True, serves="engine", reason=reason)
    told = prober.refusal(route)
    reason = f"no bootstrap server: GET /route answered {route.status}" if route.reached else "no bootstrap server"
    return replace(seen, reached=True, serves="http", reason=f"{reason}: {told}" if told else reason)


def _layout(server: Bootstrap) -> tuple[int, int, int, int] | None:
    return STYLES[server.style].layout(server.topology) if server.style else None


def _ranks(server: Bootstrap) -> Iterable[tuple[int, ...]]:
    """dp, cp, tp, pp of every rank its layout has."""
    axes = (range(min(size, MAX_RANKS)) for size in _layout(server) or (0,))
    return islice(product(*axes), MAX_RANKS)


def _rank(server: Bootstrap, rank: tuple[int, ...], probing: Prober, patience: float) -> RankAddress | str:
    """Its address and whether it is reached, or why the server does not name it."""
    dp, cp, tp, pp = rank
    look = probing.look(join(server.host, server.port), STYLES[server.style].query(dp, cp, tp, pp))
    name = f"dp{dp} cp{cp} tp{tp} pp{pp}"
    if not look.ok:
        return f"{name}: {look.status or ''} {look.reason}".replace(":  ", ": ")
    body = document.mapping(look.body)
    ip, port = document.text(body.get("rank_ip")), document.integer(body.get("rank_port"))
    if not ip or port is None or not 0 < port <= LAST_PORT:
        return f"{name}: answered without a usable rank_ip and rank_port: {_short(look)}"
    # Known without a connection, which a rank with keys would take for a stranger's.
    reason = "" if is_listening(ip, port) else dial(ip, port, probing.deadline.within(patience))
    return RankAddress(dp, cp, tp, pp, ip, port, not reason, reason)


def _short(look: Reply) -> str:
    return document.excerpt(str(look.body))


def _with_ranks(server: Bootstrap, found: Sequence[RankAddress | str]) -> Bootstrap:
    ranks = tuple(rank for rank in found if isinstance(rank, RankAddress))
    unranked = [rank for rank in found if isinstance(rank, str)]
    layout = _layout(server)
    if layout and ranks_of(layout) > MAX_RANKS:
        unranked.append(f"{ranks_of(layout) - MAX_RANKS} more of a layout of {ranks_of(layout)} ranks: not asked")
    registered = len(ranks) if layout and server.style == OLD.name else server.registered
    return replace(server, ranks=ranks, unranked=tuple(unranked), registered=registered)
