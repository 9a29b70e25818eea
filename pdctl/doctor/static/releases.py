"""Releases as they are written down: their known faults (PD317), those that no table has (PD323), and n > 1 (PD319)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, Unknown, finding
from pdctl.doctor.static.question import written
from pdctl.engines.sglang.faults import ATTENTION_DP, ONE_RANK_BALANCE, SPECULATION, Release, hits
from pdctl.engines.versions import NEWEST, OLDEST, parse, spell, unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.engines.versions import Version

READ = f"a release from {spell(OLDEST)} to {spell(NEWEST)} that pdctl has read"
NUMBERS = re.compile(r"(?<!\d)\d{1,6}\.\d{1,6}\.\d{1,6}(?:\.post\d{1,6})?")


def of(code: str, name: str, release: Release, evidence: list[str]) -> Iterator[Finding]:
    """The faults as findings about `name`."""
    called = "SGLang" if release.component == "sglang" else "sglang-router"
    for fault, doubt in hits(release):
        observed = f"{called} {spell(release.version)}" + (f" ({doubt})" if doubt else "")
        severity = Severity.INFO if doubt else None
        expected = f"{called} {spell(fault.until)} or newer"
        yield finding(
            code, name, observed, expected, evidence, severity, fault=fault.text, report=fault.report, fix=fault.fix
        )


def known_bad(servers: Servers) -> Verdict:
    unknown = [side.name for side in servers.sides if not side.release and side.role]
    found: list[Finding] = []
    for side in servers.sides:
        if side.release and side.role:
            found += of("PD317", side.name, _release(side), [_evidence(servers, side)])
    found += _routers(servers)
    if unknown and not found:
        where = "engine.version" if servers.topology is not None else "a tag on its image"
        return Unknown(f"nobody says which release {', '.join(unknown)} runs ({where})")
    return found


def _release(side: Server) -> Release:
    features = set()
    if side.dp_attention:
        features.add(ATTENTION_DP)
    if side.flags.has("speculative-algorithm"):
        features.add(SPECULATION)
    method = side.flags.text("load-balance-method")
    if side.dp_ranks == 1 and method not in (None, "auto", "follow_bootstrap_room"):
        features.add(ONE_RANK_BALANCE)
    backend = "mooncake" if side.backend == "mooncake_tcp" else side.backend
    return Release(numbers(side.release) or (0, 0, 0), side.role, backend, frozenset(features))


def numbers(text: str) -> Version | None:
    """The numbers of a version or an image's tag, that of a post release too; None when there are none."""
    found = NUMBERS.search(text)
    return parse(found[0]) if found is not None else None


def _routers(servers: Servers) -> Iterator[Finding]:
    """An image that runs nothing but a router is tagged with the router's version."""
    for router in servers.routers:
        image = router.container.image if router.container is not None else ""
        version = numbers(image.rpartition(":")[2]) if router.kind == "sglang-router" else None
        if version is not None and router.pod is not None and router.container is not None:
            place = router.pod.at(router.container.image_line)
            yield from of(
                "PD317", router.name, Release(version, "", "", component="router"), [f"{place}: image: {image}"]
            )


def _evidence(servers: Servers, side: Server) -> str:
    if servers.topology is not None:
        span = servers.topology.spans.get("engine.version")
        return f"{span.file}:{span.line}: engine.version: {side.release}" if span else f"engine.version {side.release}"
    container = side.container
    return f"{side.place(container.image_line)}: image: {container.image}" if container is not None else side.name


def not_read(servers: Servers) -> Verdict:
    """Releases that no table has: what pdctl says about them is said of a neighbour."""
    sides = [side for side in servers.sides if side.release and numbers(side.release) is not None]
    if not sides:
        return Unknown("nobody says which release runs")
    found: dict[str, Finding] = {}
    for side in sides:
        observed = unread(parse(side.release))
        if observed and observed not in found:
            found[observed] = finding("PD323", side.name, observed, READ, [_evidence(servers, side)])
    return list(found.values())


def sampling(servers: Servers) -> Verdict:
    """Nothing in a file says that clients will send n > 1: a thing to know, not a fault of this deployment."""
    engine = next((side for side in servers.sides if side.engine == "sglang"), None)
    if engine is None:
        return Skipped("no SGLang engine behind a router")
    return [finding("PD319", "", "n > 1 is not refused", "n = 1", ["every release up to 0.5.23"], Severity.INFO)]


CHECKS = (
    written("PD317", known_bad, embedded=False),
    written("PD323", not_read, embedded=False),
    written("PD319", sampling, embedded=False),
)
