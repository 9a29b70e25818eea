"""Faults of released versions, as data: what is wrong, in which releases, with which backend, and who reported it.

The bounds follow from the sources of every release from 0.5.3 to 0.5.23 (dialect/releases/sglang/releases.tsv), unless
a row says `reported`. A release that was not read and lies beside a bound may have the fault or not; a finding says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.entry import Severity
from pdctl.dialect.versions import (
    SGLANG,
    V0_5_3,
    V0_5_6,
    V0_5_9,
    V0_5_11,
    V0_5_12,
    V0_5_13,
    V0_5_15,
    V0_5_16,
    V0_5_17,
    V0_5_18,
    V0_5_19,
    V0_5_20,
    V0_5_21,
    Version,
    parse,
    spell,
    unread,
)
from pdctl.doctor.check import Skipped, Unknown, finding
from pdctl.doctor.static.question import written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Server, Servers


class Fault(NamedTuple):
    """`since` inclusive, `until` exclusive. role, backend "": any. features: all of them must be in use.

    component: sglang, or router (sglang_router). reported: the bounds are those of the reports, none is in doubt.
    """

    text: str
    report: str
    since: Version
    until: Version
    fix: str
    role: str = ""
    backend: str = ""
    features: tuple[str, ...] = ()
    component: str = "sglang"
    reported: bool = False


NUMBERS = re.compile(r"(?<!\d)\d{1,6}\.\d{1,6}\.\d{1,6}(?:\.post\d{1,6})?")
ONE_RANK_BALANCE = "a load-balance method with one DP rank"
ATTENTION_DP = "DP attention"
SPECULATION = "speculative decoding"
NIXL_131 = "NIXL 1.3.1 or 1.3.2"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "with NIXL a prefill request whose decode never calls waits for ever and keeps its slot",
        "sglang#34692", V0_5_3, V0_5_18, "update SGLang to 0.5.18", "prefill", "nixl",
    ),
    Fault(
        "with NIXL decode waits for KV cache without any time limit",
        "sglang 0.5.3 source", V0_5_3, V0_5_6, "update SGLang to 0.5.6", "decode", "nixl",
    ),
    Fault(
        "with NIXL one abort by a decode ends the prefill's bootstrap thread, and every later room hangs",
        "sglang#30352", V0_5_13, V0_5_16, "update SGLang to 0.5.16", "prefill", "nixl",
    ),
    Fault(
        "with NIXL decode is not told when a transfer fails at prefill, and waits for its 300 s",
        "sglang#36033", V0_5_3, V0_5_20, "update SGLang to 0.5.20", "decode", "nixl",
    ),
    Fault(
        "with NIXL decode looks at its deadline before the notices of completion: finished rooms time out",
        "sglang#32267", V0_5_6, V0_5_17, "update SGLang to 0.5.17", "decode", "nixl",
    ),
    Fault(
        "with NIXL a /generate request with n > 1 can end the prefill: its samples share one room",
        "sglang 0.5.11 source", V0_5_3, V0_5_12, "update SGLang to 0.5.12, or refuse n > 1", "prefill", "nixl",
    ),
    Fault(
        "with Mooncake one failed transfer shuts a decode rank out until it registers again",
        "sglang 0.5.12 source", V0_5_3, V0_5_13, "update SGLang to 0.5.13", "prefill", "mooncake",
    ),
    Fault(
        "a rank tries to register with the bootstrap server once; one that fails stays missing",
        "sglang#25125", V0_5_3, V0_5_12, "update SGLang to 0.5.12", "prefill",
    ),
    Fault(
        "decode reuses the pages of an aborted room while the old transfer may still write: silent wrong text",
        "sglang#35049", V0_5_3, V0_5_21, "update SGLang to 0.5.21", "decode",
    ),
    Fault(
        "decode can block on a dead prefill's socket, and its /health fails with it",
        "sglang#31144", V0_5_3, V0_5_17, "update SGLang to 0.5.17", "decode",
    ),
    Fault(
        "a prompt above the limit is answered with 200 and text from pages nobody wrote",
        "sglang#30551", V0_5_11, V0_5_19, "update SGLang to 0.5.19", "prefill", reported=True,
    ),
    Fault(
        "decode polls for a DP rank that is never registered until the host is out of ports",
        "sglang#19305", V0_5_9, V0_5_13, "drop --load-balance-method on prefill", "prefill",
        features=(ONE_RANK_BALANCE,), reported=True,
    ),
    Fault(
        "DP attention with speculation hangs in warm-up or on the first routed request, for some models",
        "sglang#32209", V0_5_15, V0_5_16, "update SGLang to 0.5.16", "decode",
        features=(ATTENTION_DP, SPECULATION), reported=True,
    ),
    Fault(
        "native crashes in NIXL's progress thread and when a peer restarts",
        "sglang#35189", V0_5_17, V0_5_18, "pin another NIXL build", backend="nixl",
        features=(NIXL_131,), reported=True,
    ),
    Fault(
        "with an open prefill breaker decode still gets rooms that prefill never sees, until the router restarts",
        "sglang#31206", (0, 1, 0), (0, 2, 5), "update the router", component="router", reported=True,
    ),
)  # fmt: skip


class Release(NamedTuple):
    """One process as far as faults depend on it. `version` as it calls itself."""

    version: Version
    role: str
    backend: str
    features: frozenset[str] = frozenset()
    component: str = "sglang"


class Hit(NamedTuple):
    """`doubt`: the release lies between one that has the fault and one that has not; "" when it surely has it."""

    fault: Fault
    doubt: str


def hits(release: Release) -> Iterator[Hit]:
    """The faults of a release, those that are in doubt too."""
    for fault in FAULTS:
        fits = (
            fault.component == release.component
            and fault.role in ("", release.role)
            and fault.backend in ("", release.backend)
            and release.features.issuperset(fault.features)
        )
        if fits and fault.since <= release.version < fault.until:
            yield Hit(fault, "" if fault.reported else _doubt(fault, release.version))


def _doubt(fault: Fault, version: Version) -> str:
    """Between the last release that was seen to have it and the first that was seen not to."""
    last = max(known for known in SGLANG if known < fault.until)
    if version <= last:
        return ""
    return f"between {spell(last)}, which has it, and {spell(fault.until)}, which has not"


def of(code: str, name: str, release: Release, evidence: list[str]) -> Iterator[Finding]:
    """The faults as findings about `name`."""
    called = "SGLang" if release.component == "sglang" else "sglang-router"
    for fault, doubt in hits(release):
        observed = f"{called} {spell(release.version)}" + (f" ({doubt})" if doubt else "")
        severity = Severity.INFO if doubt else None
        yield finding(
            code, name, observed, "", evidence, severity, fault=fault.text, report=fault.report, fix=fault.fix
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
            found[observed] = finding("PD323", side.name, observed, "", [_evidence(servers, side)])
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
