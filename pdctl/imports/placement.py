"""Where the instances run: hosts from the router's addresses, GPUs per host, and the ports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang.endpoints import DEFAULT_BOOTSTRAP_PORT as BOOTSTRAP
from pdctl.engines.sglang.endpoints import DEFAULT_PORT as HTTP
from pdctl.imports.found import GPU_LISTS, ROLES
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.imports.found import FoundEngine, FoundRouter, Notes
    from pdctl.imports.instances import Instance
    from pdctl.manifests.command_lines import Listed

GPUS = 8  # per host, if unknown
BOOTSTRAP_FLAG = "disaggregation-bootstrap-port"
MOST = 1024  # maximum number of instances of a role
SELF = re.compile(r"localhost|127\.[\d.]+|::1|0\.0\.0\.0|::|")
NUMBERED = re.compile(r"([a-z0-9][a-z0-9-]{0,40}?)-\d+")  # a plan's names for the hosts of a pool


class Seat(NamedTuple):
    """One instance and its host; `host` is "" for this machine, or if unknown."""

    instance: Instance
    host: str


def address(url: str) -> tuple[str, int | None]:
    """Host and port of a URL, either of which may be a variable; the host is "" for this machine."""
    rest = url.split("://", 1)[-1].split("/", 1)[0]
    host, _, port = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
    if not host:
        host, port = rest, ""
    host = host.strip("[]")
    return ("" if SELF.fullmatch(host) else host), numerals.port(port)


def seats(found: Sequence[Instance], routers: Sequence[FoundRouter], form: str, notes: Notes) -> tuple[Seat, ...]:
    """One seat per instance: as many as copies are wanted, or as the router lists."""
    placed: list[Seat] = []
    for role in ROLES:
        mine = [one for one in found if one.role == role]
        urls = list({each.url: each for router in routers for each in router.listed.get(role, ())}.values())
        if form == "script" and mine:
            placed += _by_address(role, mine, urls, notes)
        else:
            for one in mine:
                placed += [Seat(one, "")] * _copies(one, notes)
            _missed(role, mine, urls, notes)
            for each in urls if role == ROLES[0] else ():
                _note_bootstrap_port(each, mine[0].leader if mine else None, notes)
    named = any(router.listed.get(role) for router in routers for role in ROLES)
    if not named and form == "script":
        return tuple(_on_hosts_of_their_own(placed, notes))
    _note_hosts(placed, notes)
    return tuple(placed)


def _note_hosts(placed: Sequence[Seat], notes: Notes) -> None:
    """Note lost host names: a topology has pools, and the target chooses hosts. Names such as `h100-0` are kept."""
    mine = [seat for seat in placed if seat.host and "[" not in seat.host and not NUMBERED.fullmatch(seat.host)]
    hosts = dict.fromkeys(f"{seat.instance.role} on {seat.host}" for seat in mine)
    if hosts:
        notes.changed("", f"hosts ({', '.join(hosts)}) became pools: the target says which hosts they are")


def _on_hosts_of_their_own(placed: list[Seat], notes: Notes) -> list[Seat]:
    """Scripts without hosts may be meant for several: put each instance on its own if ports or GPUs would collide."""
    leaders = [seat.instance.leader for seat in placed]
    if any(seat.host for seat in placed) or any(_shares(leader) for leader in leaders):
        return placed
    ports = [leader.number("port") or HTTP for leader in leaders if leader.kind == RELEASED or leader.number("port")]
    total = sum(gpus(seat.instance) * seat.instance.nodes for seat in placed)
    if len(set(ports)) == len(ports) and total <= GPUS:
        return placed
    why = f"together they take {total} GPUs"
    if total <= GPUS:
        why = f"two of them listen on port {max(ports, key=ports.count)}"
    notes.assumed("", f"every instance runs on a host of its own: {why}")
    return [seat._replace(host=f"{seat.instance.role}-{number}") for number, seat in enumerate(placed)]


def _shares(leader: FoundEngine) -> bool:
    """Whether an engine is told which of its host's GPUs to use, or needs none."""
    shown = next((leader.env[name].value for name in GPU_LISTS if name in leader.env), None)
    return leader.kind == EMBEDDED or bool(leader.number("base-gpu-id")) or (shown or "0")[0] != "0"


def _note_bootstrap_port(each: Listed, leader: FoundEngine | None, notes: Notes) -> None:
    """Note a wrong bootstrap port in the router's command line; pdctl writes the right one."""
    place = each.evidence.partition(": ")[0]
    own = leader.number(BOOTSTRAP_FLAG) if leader is not None else None
    if own is None and leader is not None and not leader.flags.has(BOOTSTRAP_FLAG):
        own = BOOTSTRAP
    if each.port is None and each.clear:
        notes.suspect(place, f"{_null(each)}; pdctl gives the port")
    elif each.port is not None and own is not None and each.port != own:
        notes.suspect(place, f"bootstrap port {each.port} for {each.url}, which listens on {own}; pdctl gives that one")


def describe_null_port(each: Listed, code: str) -> str:
    """What is wrong with a prefill whose bootstrap port is missing in the router's command line, with its place."""
    return f"{each.evidence.partition(': ')[0]}: {code}{_null(each)}"


def _null(each: Listed) -> str:
    return f"no bootstrap port for {each.url}: the router sends null, and a decode puts its own in its place"


def _copies(one: Instance, notes: Notes) -> int:
    copies = 1 if one.copies is None else one.copies
    if not 0 < copies <= MOST:
        notes.suspect(one.leader.place, f"{copies} instances of this {one.role}: taken as 1")
        return 1
    return copies


def _missed(role: str, mine: list[Instance], urls: list[Listed], notes: Notes) -> None:
    have = sum(one.copies or 1 for one in mine)
    if urls and len(urls) < have:
        place = urls[0].evidence.partition(": ")[0]
        notes.suspect(place, f"the router lists {len(urls)} of {have} {role} instances; pdctl lists them all")


def _by_address(role: str, mine: list[Instance], urls: list[Listed], notes: Notes) -> Iterator[Seat]:
    """Give each command the router's first address with its port; every address left over is one more such instance."""
    left = list(urls)
    hosts: dict[int, str] = {}
    for index, one in enumerate(mine):
        port = one.leader.number("port") or HTTP
        chosen = next((each for each in left if address(each.url)[1] in (port, None)), None)
        if chosen is not None:
            left.remove(chosen)
            if role == ROLES[0]:
                _note_bootstrap_port(chosen, one.leader, notes)
        host = address(chosen.url)[0] if chosen is not None else _own(one.leader)
        hosts[index] = f"{role}: {host}" if "[" in host else host  # an element of a list: which one is unknown
        yield Seat(one, hosts[index])
    if urls and len(left) == len(urls):
        place = left[0].evidence.partition(": ")[0]
        notes.suspect(place, f"none of the router's {role} addresses has the port of a {role} that is started here")
        return
    for each in left[:MOST]:
        like = next((one for one in mine if (one.leader.number("port") or HTTP) == address(each.url)[1]), mine[0])
        place = each.evidence.partition(": ")[0]
        notes.assumed(place, f"one more {role} at {each.url}, started like the one at {like.leader.place}")
        if role == ROLES[0]:
            _note_bootstrap_port(each, like.leader, notes)
        yield Seat(like, address(each.url)[0])


def _own(leader: FoundEngine) -> str:
    """An engine's host from --dist-init-addr or --host; "" if neither names another machine."""
    for name in ("dist-init-addr", "host"):
        flag = leader.flags.find(name)
        if flag is not None and flag.values:
            host = address(flag.values[0])[0] if name == "dist-init-addr" else flag.values[0]
            if not SELF.fullmatch(host):
                return host
    return ""


def gpus(one: Instance) -> int:
    """The number of GPUs of one node of an instance."""
    leader = one.leader
    widths = [max(leader.number(name) or 1, 1) for name in ("tp-size", "pp-size")]
    plain = not leader.flags.has("enable-dp-attention")
    copies = max(leader.number("dp-size") or 1, 1) if plain else 1
    return min(max(-(-widths[0] * widths[1] * copies // one.nodes), 1), 4096)


def spans_hosts(placed: Sequence[Seat]) -> bool:
    """Whether the instances run on more than one machine."""
    return len({seat.host for seat in placed}) > 1 or any(
        seat.instance.nodes > 1 and seat.instance.leader.kind != EMBEDDED for seat in placed
    )


def pools(placed: Sequence[Seat]) -> Mapping[str, dict[str, int]]:
    """Pool → role → GPUs that a host needs, as {"prefill": {"prefill": 8}}. Hosts with both roles form one pool."""
    used: dict[str, dict[str, int]] = {}
    for role in ROLES:
        mine = [seat for seat in placed if seat.instance.role == role]
        width = max((_reach(seat, mine) for seat in mine), default=1)
        hosts = {seat.host for seat in mine}
        shared = bool(hosts & {seat.host for seat in placed if seat.instance.role != role} - {""})
        name = "default" if shared else _pool(hosts) or role
        used.setdefault(name, {})[role] = width
    return used


def _reach(seat: Seat, mine: Sequence[Seat]) -> int:
    """The number of GPUs its host needs: up to the last one it uses, or as many as all instances on it use."""
    each = gpus(seat.instance)
    base = seat.instance.leader.number("base-gpu-id") or 0
    together = each if not seat.host else sum(gpus(one.instance) for one in mine if one.host == seat.host)
    return min(max(base + each, together), 64) if each <= 64 else 64


def _pool(hosts: set[str]) -> str:
    """The common prefix of numbered hosts: `h100` for h100-0 and h100-1; "" if there is none."""
    found = {match[1] if (match := NUMBERED.fullmatch(host)) else "" for host in hosts}
    return found.pop() if len(found) == 1 else ""
