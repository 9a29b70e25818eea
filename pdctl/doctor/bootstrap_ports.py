"""Where each source says a prefill's bootstrap server is, and where a decode would really go.

Four sources name the port: the flag (or topology), the running server's /server_info, the router's list and a pod
annotation. A fifth applies silently: a router that was given no port sends null, and SGLang (0.5.3 to 0.5.23) then
uses the decode's own --disaggregation-bootstrap-port instead.

Also builds the commands that repair a router's list, checked against sglang-router 0.3.2 and smg 1.13.0: neither can
change a bootstrap port in place, so the worker has to be removed and added again. mini_lb has no such endpoint.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.doctor import server_info
from pdctl.doctor.check import BootstrapPortRow
from pdctl.engines import numerals
from pdctl.engines.kinds import router_words
from pdctl.fleet.address import PORTS, host_and_port
from pdctl.fleet.bootstrap_probe import Claim
from pdctl.loopback import is_localhost
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.doctor.check import Facts
    from pdctl.fleet.observations import Bootstrap, ObservedEngine, ObservedRouter, RouterWorker

WILDCARD = frozenset({"0.0.0.0", "::"})
DECODE_DEFAULT = "decode-default"
ANNOTATION = "sglang.ai/bootstrap-port"
NULL = "null"
STRANGER, NO_SERVER = "a bootstrap server of no prefill given", "no bootstrap server"


@dataclass(frozen=True, slots=True)
class Claims:
    """One prefill's bootstrap port according to each source; None if that source does not name it.

    host: what a decode dials, which is the host in the router's URL of the prefill (else in the user's). routed: the
    router lists the prefill, so `router` None means null. answered: those of the named ports on which a bootstrap
    server answered.
    """

    prefill: str
    url: str
    host: str
    http_port: int
    flag: int | None
    server_info: int | None
    answered: tuple[int, ...]
    routed: bool = False
    router: int | None = None

    @property
    def sends_null(self) -> bool:
        return self.routed and self.router is None

    @property
    def truth(self) -> int | None:
        """The port its server listens on: as /server_info reports it, else as the user gave it."""
        return self.server_info if self.server_info is not None else self.flag


class Landing(NamedTuple):
    """Where one decode takes the rooms of a prefill whose port is null.

    port: None if the decode's own port could not be read. reaches: a prefill's name, "" for nobody, None if unknown.
    """

    prefill: str
    decode: str
    port: int | None
    reaches: str | None

    @property
    def lucky(self) -> bool:
        return self.reaches == self.prefill


@dataclass(frozen=True, slots=True)
class PortClaims:
    """Every prefill's claims, and who listens at each (host, port). `port_claims` builds it once per Facts."""

    claims: tuple[Claims, ...]
    told: Mapping[tuple[str, int], str]  # where a prefill says that its bootstrap server listens
    http: Mapping[tuple[str, int], str]  # where the HTTP server of an engine or the router listens
    seen: Mapping[tuple[str, int], Bootstrap]

    def listener(self, host: str, port: int) -> str | None:
        """The prefill whose bootstrap server listens at host:port, or what else does; "": nobody, None: not probed.

        From 0.5.18 on the server names its prefill's HTTP port, which is decisive; before, the prefill's own claim is.
        """
        at = host_key(host)
        seen = self.seen.get((at, port))
        if seen is not None and isinstance(named := seen.topology.get("prefill_http_port"), int):
            return self.http.get((at, named), STRANGER)
        told = self.told.get((at, port))
        if told is not None or seen is None or not seen.asked:
            return told
        return STRANGER if seen.style else NO_SERVER if seen.reached else ""

    def said_of(self, host: str, port: int) -> str:
        """A clause that says who listens at host:port."""
        who, seen = self.listener(host, port), self.seen.get((host_key(host), port))
        if who is None:
            return "who listens there was not looked at"
        if seen is None or seen.style or seen.serves not in ("engine", "http"):
            return f"{who or 'nobody'} listens there"
        return answers_http(seen, self.http.get((host_key(host), port), ""))

    def landings(self, claim: Claims, decodes: Iterable[ObservedEngine]) -> tuple[Landing, ...]:
        """Where each decode would take the rooms of this prefill, whose port is null."""
        return tuple(self._landing(claim, decode) for decode in decodes)

    def _landing(self, claim: Claims, decode: ObservedEngine) -> Landing:
        port = decode.number("disaggregation_bootstrap_port")
        reaches = None if port is None else self.listener(claim.host, port)
        return Landing(claim.prefill, decode.endpoint.name, port, reaches)


@lru_cache(maxsize=4)
def port_claims(facts: Facts, routed: bool = False) -> PortClaims:
    """The claims of engines and bootstrap servers; with `routed`, also those of the router's list."""
    listed = {plain(one.url): one for one in workers(facts.router) if one.role == "prefill"} if routed else {}
    answered: dict[str, list[int]] = {}
    seen: dict[tuple[str, int], Bootstrap] = {}
    for one in facts.bootstraps:
        seen.setdefault((host_key(one.host), one.port), one)
        if one.style and one.claimed_by != (DECODE_DEFAULT,):
            answered.setdefault(one.prefill, []).append(one.port)
    found = tuple(
        _claims(engine, listed.get(plain(engine.endpoint.url)), tuple(answered.get(engine.endpoint.name, ())))
        for engine in facts.engines
        if engine.endpoint.role == "prefill"
    )
    told = {(host_key(claim.host), claim.truth): claim.prefill for claim in reversed(found) if claim.truth is not None}
    http = {
        (host_key(host), port): engine.endpoint.name
        for engine in reversed(facts.engines)
        for host, port in (address(engine.endpoint.url),)
    }
    http |= {(host_key(claim.host), claim.http_port): claim.prefill for claim in reversed(found)}
    if routed and facts.router is not None:
        host, port = address(facts.router.url)
        http.setdefault((host_key(host), port), "the router")
    return PortClaims(found, told, http, seen)


def _claims(engine: ObservedEngine, worker: RouterWorker | None, answered: tuple[int, ...]) -> Claims:
    endpoint = engine.endpoint
    host, http_port = address(worker.url if worker is not None else endpoint.url)
    return Claims(
        prefill=endpoint.name,
        url=plain(endpoint.url),
        host=host,
        http_port=http_port,
        flag=endpoint.bootstrap_port,
        server_info=engine.number("disaggregation_bootstrap_port") if engine.mode != "decode" else None,
        answered=answered,
        routed=worker is not None,
        router=worker.bootstrap_port if worker is not None and worker.bootstrap_known else None,
    )


def answers_http(seen: Bootstrap, name: str) -> str:
    """A clause about an HTTP server that listens where a bootstrap server should; `name`: whose it is, if known."""
    whose = name or ("an engine" if seen.serves == "engine" else "another server")
    status = f" (GET /route: {seen.route.status})" if seen.route is not None and seen.route.status else ""
    return f"port {seen.port} answers HTTP as {whose}, not as a bootstrap server{status}"


def annotated(facts: Facts) -> Mapping[str, int]:
    """Prefill → the port in the annotation of its pod template: the one of the same name, or the only one."""
    if facts.manifest is None:
        return {}
    from pdctl.doctor.static.server_sources import from_manifest  # late: few runs have a manifest

    named: dict[str, int] = {}
    for server in from_manifest(facts.manifest).engines:
        for said in server.pod.annotations if server.pod is not None and server.role == "prefill" else ():
            port = numerals.port((said.value or "").strip()) if said.name == ANNOTATION else None
            if port is not None:
                named[server.name] = port
    only = set(named.values())
    default = only.pop() if len(only) == 1 else None
    prefills = [engine.endpoint.name for engine in facts.engines if engine.endpoint.role == "prefill"]
    found = {name: named.get(name, default) for name in prefills}
    return {name: port for name, port in found.items() if port is not None}


def table(facts: Facts) -> tuple[BootstrapPortRow, ...]:
    said = annotated(facts)
    return tuple(_row(claim, said.get(claim.prefill)) for claim in port_claims(facts, True).claims)


def _row(claim: Claims, annotation: int | None) -> BootstrapPortRow:
    truth = claim.truth
    answered = truth if truth in claim.answered else next(iter(claim.answered), None)
    said = {
        "flag": _text(claim.flag),
        "server_info": _text(claim.server_info),
        "bootstrap": _text(answered),
        "router": NULL if claim.sends_null else _text(claim.router),
        "annotation": _text(annotation),
    }
    odd = next((place for place in ("router", "annotation", "flag", "bootstrap") if _differs(said[place], truth)), "")
    return BootstrapPortRow(claim.prefill, **said, odd=odd)


def _differs(said: str | None, truth: int | None) -> bool:
    return said is not None and (said == NULL or (truth is not None and said != str(truth)))


def _text(port: int | None) -> str | None:
    return None if port is None else str(port)


def workers(router: ObservedRouter | None) -> tuple[RouterWorker, ...]:
    return (router.workers or ()) if router is not None else ()


def plain(url: str) -> str:
    return url.rstrip("/")


@lru_cache(maxsize=8192)
def address(url: str) -> tuple[str, int]:
    """Host (without brackets) and port of a URL; port 0 if it has no readable one."""
    host, port = host_and_port(url)
    return (host, port or PORTS.get(url.partition("://")[0].lower(), 0)) if host else ("", 0)


def host_key(host: str) -> str:
    """A key for the address: all spellings of localhost map to one, every other host to itself."""
    return "127.0.0.1" if is_localhost(host) else host


def endpoint_key(url: str) -> tuple[str, int]:
    """Machine and port of a URL: equal for two spellings of one address."""
    host, port = address(url)
    return host_key(host), port


class Shared(NamedTuple):
    """One address to probe, and every prefill it is claimed for, with the sources that claim it."""

    where: Claim
    who: dict[str, tuple[str, ...]]


def bootstrap_claims(facts: Facts) -> tuple[Shared, ...]:
    ranks = {one.endpoint.name: one.endpoint.ranks or server_info.ranks(one) for one in facts.engines}
    found: dict[tuple[str, int], Shared] = {}
    for prefill, host, port, place in _claimed(facts):
        shared = found.setdefault((host, port), Shared(Claim(prefill, host, port, (), ranks.get(prefill)), {}))
        shared.who[prefill] = (*shared.who.get(prefill, ()), place)
    return tuple(found.values())


def _claimed(facts: Facts) -> Iterator[tuple[str, str, int, str]]:
    """Prefill, host, port, source. A null claims every decode's own port."""
    annotations = annotated(facts)
    defaults = {
        port
        for engine in facts.engines
        if engine.endpoint.role == "decode" and (port := engine.number("disaggregation_bootstrap_port")) is not None
    }
    for claim in port_claims(facts, True).claims:
        for place, port in _named(claim, annotations.get(claim.prefill)):
            if port is not None and claim.host:
                yield claim.prefill, claim.host, port, place
        if claim.sends_null and claim.host:
            for port in sorted(defaults):
                yield claim.prefill, claim.host, port, DECODE_DEFAULT


def _named(claim: Claims, annotation: int | None) -> Iterator[tuple[str, int | None]]:
    yield "server_info", claim.server_info
    yield "flag", claim.flag
    yield "router", claim.router
    yield "annotation", annotation


def fan_out(claims: Sequence[Shared], seen: Sequence[Bootstrap]) -> tuple[Bootstrap, ...]:
    """What was seen at each address, once for every prefill the address is claimed for."""
    return tuple(
        replace(one, prefill=prefill, claimed_by=places)
        for claim, one in zip(claims, seen, strict=True)
        for prefill, places in claim.who.items()
    )


@lru_cache(maxsize=2)
def router_command(facts: Facts) -> str:
    """The router's command line with every prefill's real port and every decode, each in the role it reports."""
    truth = {claim.prefill: claim.truth for claim in port_claims(facts, True).claims}
    prefills: list[tuple[str, int | None]] = []
    decodes: list[str] = []
    for engine in facts.engines:
        name, url = engine.endpoint.name, plain(engine.endpoint.url)
        if role(engine) == "prefill":
            prefills.append((url, truth.get(name) or engine.number("disaggregation_bootstrap_port")))
        elif role(engine) == "decode":
            decodes.append(url)
    return spell(facts.router, prefills, decodes)


def role(engine: ObservedEngine) -> str:
    """The engine's role: what it reports, else what the user said."""
    return engine.mode if engine.mode in ("prefill", "decode") else engine.endpoint.role


def spell(router: ObservedRouter | None, prefills: Iterable[tuple[str, int | None]], decodes: Iterable[str]) -> str:
    if router is None:
        return shlex.join(router_words("", prefills, decodes))
    return shlex.join(router_words(router.kind, prefills, decodes, *address(router.url)))


def worker_body(url: str, role: str, bootstrap_port: int | None) -> str:
    """The JSON body of POST /workers."""
    port = {} if bootstrap_port is None else {"bootstrap_port": bootstrap_port}
    return json.dumps({"url": url, "worker_type": role, **port}, ensure_ascii=False)


def at_run_time(router: ObservedRouter, url: str, role: str, bootstrap_port: int | None) -> str:
    """The shell commands that DELETE and POST one worker at /workers; "" if the router has no such endpoint."""
    if router.workers is None:
        return ""
    base = pasteable(plain(router.url))
    body = worker_body(url, role, bootstrap_port)
    pick = f".workers[]|select(.url=={json.dumps(url)}).id"
    return (
        f"curl -s {base}/workers | jq -r {pasteable(pick)} | xargs -I ID curl -s -X DELETE {base}/workers/ID"
        f" && sleep 2 && curl -s {base}/workers -H 'content-type: application/json' -d {pasteable(body)}"
    )
