"""The words of doctor: the facts that one run looked at, a check that judges them, and the findings it comes to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from pdctl.catalogue.entry import Needs, Severity
    from pdctl.fleet.observations import (
        Bootstrap,
        Canary,
        Ended,
        Endpoint,
        HeldRequests,
        Host,
        ObservedEngine,
        ObservedRouter,
        SignatureLine,
    )
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.manifest import Manifest
    from pdctl.topology.model import Topology

    Verdict: TypeAlias = "Iterable[Finding] | Skipped | Unknown"


class Depth(str, Enum):
    """How far doctor goes; each includes the ones before it."""

    STATIC = "static"
    LIVE = "live"
    CANARY = "canary"


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Every field may be missing. None and () are told apart by `asked`: () of something asked for means there is none.

    asked: what this run was meant to look at; a check that needs anything else is skipped, not failed.
    queues, logs: read after the canaries, and from the logs of a run. logged: the instances whose logs were read.
    ended: processes of the run that are over, as its supervisor recorded it.
    Equal only to itself: what is read out of a Facts is remembered by its identity.
    """

    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None
    endpoints: tuple[Endpoint, ...] = ()
    engines: tuple[ObservedEngine, ...] = ()
    ended: tuple[Ended, ...] = ()
    bootstraps: tuple[Bootstrap, ...] = ()
    router: ObservedRouter | None = None
    host: Host | None = None
    canaries: tuple[Canary, ...] = ()
    queues: tuple[HeldRequests, ...] = ()
    logs: tuple[SignatureLine, ...] = ()
    logged: tuple[str, ...] = ()
    depth: Depth = Depth.STATIC
    asked: tuple[Needs, ...] = ()


SHOWN = 4  # of a list that repeats itself
# Verbs that follow a name in the catalogue's headlines, and what they are after several.
PLURALS = {
    "answers": "answer", "does": "do", "has": "have", "is": "are", "listens": "listen", "logs": "log", "moves": "move",
    "names": "name", "receives": "receive", "runs": "run", "serves": "serve", "spans": "span", "uses": "use",
    "was": "were",
}  # fmt: skip


class CheckStatus(str, Enum):
    OK = "ok"
    FINDING = "finding"
    SKIPPED = "skipped"  # not asked for, or nothing to look at
    UNKNOWN = "unknown"  # asked for, and what it needs could not be read


@dataclass(frozen=True, slots=True)
class Finding:
    """`instance` is "" when the deployment as a whole is meant. `fix`: one line to paste. `suppressed`: why, or ""."""

    code: str
    slug: str
    severity: Severity
    instance: str
    headline: str
    observed: str
    expected: str
    evidence: tuple[str, ...]
    fix: str
    suppressed: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    code: str
    status: CheckStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapPortRow:
    """One prefill's bootstrap port as each place has it; None: that place does not say, "null": it says null.

    odd: the column that disagrees with the others, "" when all that speak agree.
    """

    prefill: str
    flag: str | None  # the topology, or --prefill URL,PORT
    server_info: str | None
    bootstrap: str | None  # the port something bootstrap-like answered on
    router: str | None
    annotation: str | None  # sglang.ai/bootstrap-port of a manifest
    odd: str = ""


@dataclass(frozen=True, slots=True)
class CanaryCell:
    """One prefill × decode pair of the canary matrix. `ok` None: not tried, `reason` says why; `room` 0: none sent."""

    prefill: str
    decode: str
    ok: bool | None
    seconds: float | None
    reason: str
    room: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """`depth` is static, live or canary. `seconds` is how long the probing and checking took.

    blind: servers were asked, and no SGLang was reached.
    """

    title: str
    depth: str
    findings: tuple[Finding, ...]
    checks: tuple[Checked, ...]
    ports: tuple[BootstrapPortRow, ...]
    matrix: tuple[CanaryCell, ...]
    seconds: float
    blind: bool = False


class FindingKey(NamedTuple):
    """What makes a finding the same one in the next report: its wording may carry numbers that move."""

    code: str
    instance: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """`seconds`: how long it was open."""

    finding: Finding
    seconds: float


@dataclass(frozen=True, slots=True)
class Watched:
    """Open findings, since when each is open (monotonic seconds), and what the last report changed."""

    open: Mapping[FindingKey, tuple[Finding, float]]
    opened: tuple[Finding, ...] = ()
    resolved: tuple[Resolved, ...] = ()


def begin() -> Watched:
    return Watched({})


def advance(before: Watched, report: Report, now: float) -> Watched:
    """`report` was made at `now` (monotonic seconds). Suppressed findings are not watched."""
    current = {FindingKey(each.code, each.instance): each for each in report.findings if not each.suppressed}
    resolved = tuple(Resolved(found, now - since) for key, (found, since) in before.open.items() if key not in current)
    return Watched(
        {key: (found, before.open[key][1] if key in before.open else now) for key, found in current.items()},
        tuple(found for key, found in current.items() if key not in before.open),
        resolved,
    )


def shorten_lines(lines: list[str], shown: int = SHOWN) -> list[str]:
    return lines if len(lines) <= shown else [*lines[:shown], f"and {len(lines) - shown} more"]


def names(all_: list[str]) -> str:
    """a, then a and b, then a, b and c, and so on until: a, b, c, d and 12 more"""
    if len(all_) > SHOWN:
        return f"{', '.join(all_[:SHOWN])} and {len(all_) - SHOWN} more"
    return " and ".join(filter(None, (", ".join(all_[:-1]), *all_[-1:])))


def agreeing(sentence: str, who: str) -> str:
    """A sentence about `who` with the verb behind it in the plural where they are several: "a and b have …"."""
    if " and " not in who:
        return sentence
    return re.sub(
        rf"{re.escape(who)} (\w+)", lambda found: f"{who} {PLURALS.get(found[1], found[1])}", sentence, count=1
    )


@dataclass(frozen=True, slots=True)
class Skipped:
    """The question does not arise here: `reason` says why, for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The question arises, and what would answer it could not be read: `reason` names it."""

    reason: str


NOT_FOR_EMBEDDED = Skipped("the embedded engine has no such fault")


@dataclass(frozen=True, slots=True)
class Check:
    """`judge` is pure. No findings means it looked and all is well.

    Several checks may decide one code, each from other facts (a page size from the topology, and from /server_info).
    Every module of checks ends with a tuple CHECKS; importing registers nothing.
    """

    code: str
    needs: tuple[Needs, ...]
    judge: Callable[[Facts], Verdict]


def finding(
    code: str,
    instance: str = "",
    observed: str = "",
    expected: str = "",
    evidence: Iterable[str] = (),
    severity: Severity | None = None,
    **values: object,
) -> Finding:
    """A finding in the catalogue's words. `values` fill the placeholders of headline and fix, beside `instance`,
    `observed` and `expected`. `severity` None: the catalogue's.
    """
    said = entry(code)
    filled = {"instance": instance, "observed": observed, "expected": expected, **values}
    return Finding(
        code=said.code,
        slug=said.slug,
        severity=severity or said.severity,
        instance=instance,
        headline=agreeing(agreeing(fill(said.headline, filled), str(filled["instance"])), str(filled.get("other", ""))),
        observed=observed,
        expected=expected,
        evidence=tuple(evidence),
        fix=fill(said.fix, filled),
    )
