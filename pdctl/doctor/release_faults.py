"""Releases with known faults (PD317), releases in no table (PD323), and n > 1 (PD319), as written and as running."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.check import NOT_FOR_EMBEDDED, Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.doctor.static.server_sources import written
from pdctl.engines.kinds import RELEASED, RELEASED_ROUTER
from pdctl.engines.sglang.faults import ATTENTION_DP, ONE_RANK_BALANCE, SPECULATION, RunningRelease, hits
from pdctl.engines.versions import NEWEST, OLDEST, parse, spell, unread
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Facts, Finding, Verdict
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.engines.versions import Version
    from pdctl.fleet.observations import ObservedEngine

READ = f"a release from {spell(OLDEST)} to {spell(NEWEST)} that pdctl has read"
NUMBERS = re.compile(r"(?<!\d)\d{1,6}\.\d{1,6}\.\d{1,6}(?:\.post\d{1,6})?")


def fault_findings(name: str, release: RunningRelease, evidence: list[str]) -> Iterator[Finding]:
    """PD317: the release's known faults as findings about `name`."""
    called = release.program
    for fault, doubt in hits(release):
        observed = f"{called} {spell(release.version)}" + (f" ({doubt})" if doubt else "")
        severity = Severity.INFO if doubt else None
        expected = f"{called} {spell(fault.until)} or newer"
        yield finding(
            "PD317", name, observed, expected, evidence, severity, fault=fault.text, report=fault.report, fix=fault.fix
        )


def written_faults(servers: Servers) -> Verdict:
    unknown = [side.name for side in servers.sides if not side.release and side.role]
    found: list[Finding] = []
    for side in servers.sides:
        if side.release and side.role:
            found += fault_findings(side.name, _of_side(side), [_evidence(servers, side)])
    found += _routers(servers)
    if unknown and not found:
        where = "engine.version" if servers.topology is not None else "a tag on its image"
        return Unknown(f"nobody says which release {', '.join(unknown)} runs ({where})")
    return found


def _of_side(side: Server) -> RunningRelease:
    features = set()
    if side.dp_attention:
        features.add(ATTENTION_DP)
    if side.flags.has("speculative-algorithm"):
        features.add(SPECULATION)
    method = side.flags.text("load-balance-method")
    if side.dp_ranks == 1 and method not in (None, "auto", "follow_bootstrap_room"):
        features.add(ONE_RANK_BALANCE)
    backend = "mooncake" if side.backend == "mooncake_tcp" else side.backend
    return RunningRelease(numbers(side.release) or (0, 0, 0), side.role, backend, frozenset(features))


def numbers(text: str) -> Version | None:
    """The version in a version string or an image's tag, including a post release; None if there is none."""
    found = NUMBERS.search(text)
    return parse(found[0]) if found is not None else None


def _routers(servers: Servers) -> Iterator[Finding]:
    """Faults of routers, by their images: one that runs only a router is tagged with the router's version."""
    for router in servers.routers:
        image = router.container.image if router.container is not None else ""
        version = numbers(image.rpartition(":")[2]) if router.kind == RELEASED_ROUTER else None
        if version is not None and router.pod is not None and router.container is not None:
            place = router.pod.at(router.container.image_line)
            yield from fault_findings(
                router.name, RunningRelease(version, "", "", component="router"), [f"{place}: image: {image}"]
            )


def _evidence(servers: Servers, side: Server) -> str:
    if servers.topology is not None:
        span = servers.topology.spans.get("engine.version")
        return f"{span.file}:{span.line}: engine.version: {side.release}" if span else f"engine.version {side.release}"
    container = side.container
    return f"{side.place(container.image_line)}: image: {container.image}" if container is not None else side.name


def written_not_read(servers: Servers) -> Verdict:
    """PD323: releases in no table; what pdctl says about them is that of the nearest release it knows."""
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
    """PD319: no file says whether clients will send n > 1, so this informs and is not a fault of the deployment."""
    engine = next((side for side in servers.sides if side.engine == RELEASED), None)
    if engine is None:
        return Skipped("no SGLang engine behind a router")
    return [finding("PD319", "", "n > 1 is not refused", "n = 1", ["every release up to 0.5.23"], Severity.INFO)]


WRITTEN = (
    written("PD317", written_faults, embedded=False),
    written("PD323", written_not_read, embedded=False),
    written("PD319", sampling, embedded=False),
)


def running_faults(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD317: one finding per fault for all instances of one role, release and backend."""
    groups: dict[RunningRelease, list[ObservedEngine]] = {}
    dark: list[str] = []
    for engine in facts.engines:
        if server_info.embedded(engine):
            continue
        release = _of_engine(engine)
        if release is None:
            dark.append(engine.endpoint.name)
        else:
            groups.setdefault(release, []).append(engine)
    found = [one for release, some in groups.items() for one in _findings_of_release(release, some)]
    if found or not dark:
        return found or ([] if groups else NOT_FOR_EMBEDDED if facts.engines else Skipped("no SGLang engine was given"))
    return Unknown(f"the release of {names(dark)} could not be read")


def _of_engine(engine: ObservedEngine) -> RunningRelease | None:
    try:
        version = parse(engine.version[: server_info.LONG])
    except UsageError:
        return None
    return RunningRelease(version, engine.endpoint.role, server_info.backend(engine), _features(engine))


def _features(engine: ObservedEngine) -> frozenset[str]:
    found: set[str] = set()
    if (server_info.width(engine) or 1) > 1:
        found.add(ATTENTION_DP)
    if engine.text("speculative_algorithm"):
        found.add(SPECULATION)
    balance = engine.text("load_balance_method")
    if server_info.dp_ranks(engine) == 1 and balance not in (None, "auto", "follow_bootstrap_room"):
        found.add(ONE_RANK_BALANCE)
    return frozenset(found)


def _findings_of_release(release: RunningRelease, engines: list[ObservedEngine]) -> list[Finding]:
    who = [engine.endpoint.name for engine in engines]
    evidence = shorten_lines([f"{one.endpoint.url}/server_info: version {one.version}" for one in engines])
    instance = who[0] if len(who) == 1 else ""
    return [replace(one, instance=instance) for one in fault_findings(names(who), release, evidence)]


def running_not_read(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD323: releases in no table, each once, with the instances that run it."""
    if not facts.engines:
        return Skipped("no SGLang engine was given")
    engines = [engine for engine in facts.engines if not server_info.embedded(engine)]
    if not engines:
        return NOT_FOR_EMBEDDED
    groups: dict[str, list[ObservedEngine]] = {}
    for engine in engines:
        release = _of_engine(engine)
        if release is not None:
            groups.setdefault(unread(release.version), []).append(engine)
    if not groups:
        return Unknown(f"the release of {names([engine.endpoint.name for engine in engines])} could not be read")
    found = []
    for observed, some in groups.items():
        if observed:
            who = [one.endpoint.name for one in some]
            evidence = shorten_lines([f"{one.endpoint.url}/server_info: version {one.version}" for one in some])
            found.append(finding("PD323", who[0] if len(who) == 1 else names(who), observed, READ, evidence))
    return found


RUNNING = (Check("PD317", (Needs.ENDPOINT,), running_faults), Check("PD323", (Needs.ENDPOINT,), running_not_read))
