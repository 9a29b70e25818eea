"""Probe bootstrap servers: which ranks they name (sglang 0.5.3 to 0.5.23), and which of these are reached."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sglang import endpoints as rows
from pdctl.fleet import address, http_client, peer_json, prober
from pdctl.fleet.address import LAST_PORT, dial, join
from pdctl.fleet.deadline import Deadline, map_within
from pdctl.fleet.engine_probe import PATHS as INFO_PATHS
from pdctl.fleet.listeners import is_listening
from pdctl.fleet.observations import Bootstrap, RankAddress, Reply
from pdctl.fleet.prober import Prober
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.fleet.http_client import Answer
    from pdctl.fleet.peer_json import Object

# Axis → the name of its size; then the axis on which each query parameter selects a rank.
AXES = {"dp": "dp_size", "cp": "attn_cp_size", "tp": "attn_tp_size", "pp": "pp_size"}
AXIS_OF = {
    "prefill_dp_rank": "dp",
    "prefill_cp_rank": "cp",
    "target_tp_rank": "tp",
    "target_pp_rank": "pp",
    "engine_rank": "tp",
    "target_dp_group": "dp",
}
MAX_RANKS = 1024  # ranks asked for per prefill; a layout that claims more is not trusted
MAX_SIZE = 1 << 20  # ranks along one axis; a larger size is nonsense
COUNT = re.compile(rows.NOT_COMPLETE)
AT_ONCE = 64  # servers, and then ranks, probed at once
PATIENCE = 5.0  # seconds for one request, as long as a decode waits for it


class Style(NamedTuple):
    """One of the two forms of GET /route: the query parameters, and the sizes in the answer if all ranks are -1.

    `sizes` is in the order of AXES; "" if the releases that use the form have no such axis.
    """

    name: str
    words: tuple[str, ...]
    sizes: tuple[str, ...]

    def query(self, dp: int = -1, cp: int = -1, tp: int = -1, pp: int = -1) -> str:
        """The path and query for one rank; without a rank, for the parallel layout of the whole prefill."""
        ranks = {"dp": dp, "cp": cp, "tp": tp, "pp": pp}
        return "/route?" + "&".join(f"{word}={ranks[AXIS_OF[word]]}" for word in self.words)

    def layout(self, body: Object) -> tuple[int, int, int, int] | None:
        """dp, cp, tp, pp; None if a size is missing or invalid (0.5.3, 0.5.8: before the first rank registers)."""
        found = [peer_json.integer(body.get(name)) if name else 1 for name in self.sizes]
        dp, cp, tp, pp = (size if size is not None and 0 < size < MAX_SIZE else 0 for size in found)
        return (dp, cp, tp, pp) if dp and cp and tp and pp else None


def _style(name: str) -> Style:
    row = next(row for row in rows.QUERIES if row.style == name)
    keys = {key.meaning: key.name for key in rows.SHAPE_KEYS if key.span.holds(row.span.since)}
    return Style(name, row.names, tuple(keys.get(meaning, "") for meaning in AXES.values()))


NEW, OLD = _style("new"), _style("old")
QUERY, OLD_QUERY = NEW.query(), OLD.query()


@dataclass(frozen=True, slots=True)
class RankRegistration:
    """`registered` is None if the server does not count ranks (it is unreachable, or older than 0.5.13)."""

    reached: bool
    complete: bool
    registered: int | None = None
    reason: str = ""


def registration(host: str, port: int, ranks: int, timeout: float = 2.0) -> RankRegistration:
    """Whether all `ranks` of the prefill whose bootstrap server is at host:port have registered."""
    base = address.join(host, port)
    answer = http_client.get(base + QUERY, timeout)
    if answer.status == 400:
        return _old(base, http_client.get(base + OLD_QUERY, timeout), ranks, timeout)
    if not answer.reached:
        return RankRegistration(False, False, reason=answer.reason)
    if answer.ok:
        return RankRegistration(True, True, ranks)
    return RankRegistration(True, False, counted(answer.text), peer_json.excerpt(answer.text))


def counted(text: str) -> int | None:
    """The number of registered ranks that an answer reports, or None."""
    found = COUNT.search(text)
    return numerals.whole(found["registered"]) if found else None


def ranks_of(layout: tuple[int, int, int, int]) -> int:
    return math.prod(layout)


def _old(base: str, answer: http_client.Answer, ranks: int, timeout: float) -> RankRegistration:
    """Registration before 0.5.13: the sizes are known from the first rank on, so ask for the ranks one by one."""
    layout = OLD.layout(peer_json.mapping(answer.json())) if answer.ok else None
    if layout is None or ranks_of(layout) > MAX_RANKS:
        return RankRegistration(answer.reached, False, 0 if answer.ok else None, answer.reason)
    named = sum(http_client.get(base + OLD.query(*rank), timeout).ok for rank in product(*map(range, layout)))
    return RankRegistration(True, named >= ranks, named)


STYLES = {style.name: style for style in (NEW, OLD)}


@dataclass(frozen=True, slots=True)
class Claim:
    """Where a prefill's bootstrap server is said to listen, and which sources say so (see observations.Bootstrap).

    ranks: the number of registrations the prefill owes; None if only it knows.
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
    servers = map_within(lambda claim: _server(claim, probing), claims, at_once, whole)
    todo = [(number, ranks) for number, server in enumerate(servers) for ranks in _ranks(server)]
    named = map_within(lambda one: _rank(servers[one[0]], one[1], probing, patience), todo, at_once, whole)
    found: list[list[RankAddress | str]] = [[] for _ in servers]
    for (number, _), place in zip(todo, named, strict=True):
        found[number].append(place)
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
        if old.ok and not set(OLD.sizes).isdisjoint(peer_json.mapping(old.body)):
            return _bootstrap(replace(seen, route=old), OLD)
    elif route.ok and NEW.layout(peer_json.mapping(seen.route.body if seen.route else None)):
        return _bootstrap(seen, NEW)
    elif counted(route.text) is not None:
        return replace(_bootstrap(seen, NEW), registered=counted(route.text), reason=prober.refusal(route))
    return _something_else(seen, base, route, probing)


def _bootstrap(seen: Bootstrap, style: Style) -> Bootstrap:
    topology = peer_json.mapping(seen.route.body if seen.route else None)
    layout = style.layout(topology)
    expected = seen.expected if seen.expected is not None or layout is None else ranks_of(layout)
    # A release that counts answers only once all have registered; for the others, count rank by rank.
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
    """Recognise the HTTP port of an engine, the most common wrong number, or any other HTTP server."""
    for path in INFO_PATHS:
        look = probing.look(base, path)
        mode = peer_json.mapping(look.body).get("disaggregation_mode")
        if look.ok and mode is not None:
            said = peer_json.quoted(peer_json.text(mode))
            reason = f"this is the HTTP port of an engine (disaggregation_mode {said}), not a bootstrap server"
            return replace(seen, reached=True, serves="engine", reason=reason)
    told = prober.refusal(route)
    reason = f"no bootstrap server: GET /route answered {route.status}" if route.reached else "no bootstrap server"
    return replace(seen, reached=True, serves="http", reason=f"{reason}: {told}" if told else reason)


def _layout(server: Bootstrap) -> tuple[int, int, int, int] | None:
    return STYLES[server.style].layout(server.topology) if server.style else None


def _ranks(server: Bootstrap) -> Iterable[tuple[int, ...]]:
    """dp, cp, tp, pp of every rank in the server's layout."""
    axes = (range(min(size, MAX_RANKS)) for size in _layout(server) or (0,))
    return islice(product(*axes), MAX_RANKS)


def _rank(server: Bootstrap, rank: tuple[int, ...], probing: Prober, patience: float) -> RankAddress | str:
    """The rank's address and whether it is reached, or why the server does not name it."""
    dp, cp, tp, pp = rank
    look = probing.look(join(server.host, server.port), STYLES[server.style].query(dp, cp, tp, pp))
    name = f"dp{dp} cp{cp} tp{tp} pp{pp}"
    if not look.ok:
        return f"{name}: {look.status or ''} {look.reason}".replace(":  ", ": ")
    body = peer_json.mapping(look.body)
    ip, port = peer_json.text(body.get("rank_ip")), peer_json.integer(body.get("rank_port"))
    if not ip or port is None or not 0 < port <= LAST_PORT:
        return f"{name}: answered without a usable rank_ip and rank_port: {_short(look)}"
    # Checked without a connection if possible: a rank with keys would take it for a stranger's.
    reason = "" if is_listening(ip, port) else dial(ip, port, probing.deadline.within(patience))
    return RankAddress(dp, cp, tp, pp, ip, port, not reason, reason)


def _short(look: Reply) -> str:
    return peer_json.excerpt(str(look.body))


def _with_ranks(server: Bootstrap, found: Sequence[RankAddress | str]) -> Bootstrap:
    ranks = tuple(rank for rank in found if isinstance(rank, RankAddress))
    unranked = [rank for rank in found if isinstance(rank, str)]
    layout = _layout(server)
    if layout and ranks_of(layout) > MAX_RANKS:
        unranked.append(f"{ranks_of(layout) - MAX_RANKS} more of a layout of {ranks_of(layout)} ranks: not asked")
    registered = len(ranks) if layout and server.style == OLD.name else server.registered
    return replace(server, ranks=ranks, unranked=tuple(unranked), registered=registered)
