"""The bootstrap port a router was given for each prefill, against the one its engine will listen on."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import finding
from pdctl.doctor.static.deployed import behind, split
from pdctl.doctor.static.question import written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed

RUST = "SGLANG_RUST_SERVER"


class Claim(NamedTuple):
    """What one router says of one prefill. `engine` None: the address leads to no engine of these files."""

    router: RouterLine
    listed: Listed
    engine: Server | None

    @property
    def name(self) -> str:
        return self.engine.name if self.engine is not None else self.listed.url

    @property
    def true(self) -> int | None:
        """Where the engine listens: with the Rust server on its HTTP port."""
        if self.engine is None:
            return None
        return self.engine.port if self.engine.on(RUST) else self.engine.bootstrap_port


@lru_cache(maxsize=2)
def claims(servers: Servers) -> tuple[Claim, ...]:
    """Every prefill of every router's command line; a port that hangs on a variable is nobody's claim."""
    found = []
    for router in servers.routers:
        for listed in filter(lambda each: each.clear, router.prefills):
            engines = behind(servers, listed.url, router.network)
            found.append(Claim(router, listed, engines[0] if engines else None))
    return tuple(found)


def null(servers: Servers) -> Iterator[Finding]:
    """A null is replaced by the decode's own port: wrong, unless that happens to be the prefill's."""
    for claim in claims(servers):
        if claim.listed.port is None and not _lucky(servers, claim):
            dialled = sorted({_dialled(servers, claim, one.bootstrap_port) for one in servers.of("decode")})
            observed = " or ".join(dialled) or "the decode's own bootstrap port"
            alone = claim.engine is None and len(claim.router.prefills) == 1
            yield finding(
                "PD201",
                claim.name,
                observed,
                _address(claim, claim.true) if claim.true is not None else "the prefill's bootstrap port",
                [claim.listed.evidence, *_flag(claim.engine)],
                Severity.WARNING if alone else None,
                url=claim.listed.url,
                port=claim.true if claim.true is not None else "PORT",
            )


def _address(claim: Claim, port: int | None) -> str:
    """The host comes from the prefill's URL, whatever the port is."""
    host = split(claim.listed.url)[0] or "HOST"
    return f"{f'[{host}]' if ':' in host else host}:{'?' if port is None else port}"


def _dialled(servers: Servers, claim: Claim, port: int | None) -> str:
    """With the name of the prefill that listens there, if it is another one."""
    there = (
        each.name
        for each in claims(servers)
        if port is not None and each.true == port and _address(each, port) == _address(claim, port)
    )
    who = next((name for name in there if name != claim.name), "")
    return _address(claim, port) + (f" ({who})" if who else "")


def lucky(servers: Servers) -> Iterator[Finding]:
    for claim in claims(servers):
        if claim.listed.port is None and _lucky(servers, claim):
            evidence = [claim.listed.evidence, *_flag(claim.engine)]
            yield finding("PD207", claim.name, "null", str(claim.true), evidence, url=claim.listed.url, port=claim.true)


def _lucky(servers: Servers, claim: Claim) -> bool:
    """Every decode's own port is the prefill's; the host is right already, for it comes from the URL."""
    decodes = servers.of("decode")
    return claim.true is not None and bool(decodes) and all(one.bootstrap_port == claim.true for one in decodes)


def _flag(engine: Server | None) -> Iterator[str]:
    said = engine.flags.find("disaggregation-bootstrap-port") if engine is not None else None
    if said is not None:
        yield said.evidence


def wrong(servers: Servers) -> Iterator[Finding]:
    """Neither the engine's port, nor its HTTP port (PD206), nor another's of the same list (PD203)."""
    for claim in _differing(servers):
        assert claim.engine is not None
        if claim.listed.port != claim.engine.port and _other(servers, claim) is None:
            yield _said("PD202", claim)


def is_http(servers: Servers) -> Iterator[Finding]:
    for claim in _differing(servers):
        assert claim.engine is not None
        if claim.listed.port == claim.engine.port and not claim.engine.on(RUST):
            yield _said("PD206", claim)


def swapped(servers: Servers) -> Iterator[Finding]:
    for claim in _differing(servers):
        other = _other(servers, claim)
        if other is not None:
            yield finding(
                "PD203",
                claim.name,
                str(claim.listed.port),
                str(claim.true),
                [claim.listed.evidence, other.listed.evidence],
                other=other.name,
                url=claim.listed.url,
                port=claim.true,
                other_url=other.listed.url,
                other_port=other.true,
            )


def _differing(servers: Servers) -> Iterator[Claim]:
    """With the Rust server the port is judged by PD219."""
    for claim in claims(servers):
        known = claim.engine is not None and claim.true is not None and not claim.engine.on(RUST)
        if known and claim.listed.port not in (None, claim.true):
            yield claim


def _other(servers: Servers, claim: Claim) -> Claim | None:
    """The prefill on the same host whose port this one was given."""
    for other in claims(servers):
        here = other.engine is not None and claim.engine is not None and other.engine.network == claim.engine.network
        if here and other.name != claim.name and other.true == claim.listed.port:
            return other
    return None


def _said(code: str, claim: Claim) -> Finding:
    evidence = [claim.listed.evidence, *_flag(claim.engine)]
    return finding(
        code, claim.name, str(claim.listed.port), str(claim.true), evidence, url=claim.listed.url, port=claim.true
    )


def rust(servers: Servers) -> Iterator[Finding]:
    """The routers' port for it, and the engine's own flag where it is neither the default nor the HTTP port."""
    for engine in servers.of("prefill"):
        said = engine.flags.find("disaggregation-bootstrap-port")
        if engine.on(RUST) and said is not None and engine.bootstrap_port not in (None, engine.port):
            yield _rust(engine, said.values[0], [engine.env[RUST].evidence, said.evidence])
    for claim in claims(servers):
        one = claim.engine
        if one is not None and one.on(RUST) and claim.listed.port not in (None, one.port):
            yield _rust(one, str(claim.listed.port), [one.env[RUST].evidence, claim.listed.evidence])


def _rust(engine: Server, observed: str, evidence: list[str]) -> Finding:
    url = engine.url or f"http://HOST:{engine.port}"
    return finding("PD219", engine.name, observed, str(engine.port), evidence, url=url, port=engine.port)


CHECKS = (
    written("PD201", null),
    written("PD202", wrong),
    written("PD203", swapped),
    written("PD206", is_http),
    written("PD207", lucky),
    written("PD219", rust, embedded=False),
)
