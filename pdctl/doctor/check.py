"""What doctor works with: the facts one run gathered, the checks that judge them, and the findings they yield."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill, fill_fix
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

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
    """What one run of doctor observed. Any field may be empty: if `asked` covers it, () means that there are none.

    asked: what this run was meant to look at; a check that needs anything else is skipped, not failed.
    queues: read after the canaries. logs: lines from the logs of a run. logged: the instances whose logs were read.
    run: the name of the run, "" for anything else. ended: its processes that have ended, as its supervisor recorded.
    elsewhere: instance of the run → pid of a process of it in another network namespace, where addresses mean others.
    proxy_variable: the first variable that names a proxy in this environment, "" if none does.
    Compared by identity, because results derived from a Facts are cached by it.
    """

    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None
    endpoints: tuple[Endpoint, ...] = ()
    engines: tuple[ObservedEngine, ...] = ()
    run: str = ""
    proxy_variable: str = ""
    elsewhere: Mapping[str, int] = field(default_factory=dict)
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


SHOWN = 4  # entries named of a long list of like ones
# Verbs that follow a name in the catalogue's headlines → their plural forms.
PLURALS = {
    "answers": "answer", "does": "do", "has": "have", "is": "are", "listens": "listen", "logs": "log", "moves": "move",
    "names": "name", "receives": "receive", "runs": "run", "serves": "serve", "spans": "span", "uses": "use",
    "was": "were",
}  # fmt: skip


class CheckStatus(str, Enum):
    OK = "ok"
    FINDING = "finding"
    SKIPPED = "skipped"  # not asked for, or nothing to look at
    UNKNOWN = "unknown"  # asked for, but what it needs could not be read


@dataclass(frozen=True, slots=True)
class Finding:
    """`instance`: "" for the deployment as a whole. `fix`: one line to paste. `suppressed`: the reason, or "".

    seen: from when to when log lines or records show it, in seconds since the epoch; None: it is so now, and since when
    is not known. rooms: those that all its log lines are about; empty if not every line names one.
    """

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
    seen: tuple[float, float] | None = None
    rooms: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Checked:
    code: str
    status: CheckStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapPortRow:
    """One prefill's bootstrap port according to each source; None if it names none, "null" if it says null.

    odd: the column that disagrees with the others, "" if all that name a port agree.
    """

    prefill: str
    flag: str | None  # the topology, or --prefill URL,PORT
    server_info: str | None
    bootstrap: str | None  # the port on which a bootstrap server answered
    router: str | None
    annotation: str | None  # sglang.ai/bootstrap-port of a manifest
    odd: str = ""


@dataclass(frozen=True, slots=True)
class CanaryCell:
    """One prefill × decode pair of the canary matrix. `ok` None: not tried, see `reason`; `room` 0: nothing sent."""

    prefill: str
    decode: str
    ok: bool | None
    seconds: float | None
    reason: str
    room: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """`depth`: static, live or canary. `seconds`: how long probing and checking took.

    blind: servers were probed, but no SGLang was reached. unchecked: the codes that were selected and that nothing of
    what was looked at can show.
    """

    title: str
    depth: str
    findings: tuple[Finding, ...]
    checks: tuple[Checked, ...]
    ports: tuple[BootstrapPortRow, ...]
    matrix: tuple[CanaryCell, ...]
    seconds: float
    blind: bool = False
    unchecked: frozenset[str] = frozenset()


class FindingKey(NamedTuple):
    """What identifies a finding from one report to the next; its wording may contain numbers that change."""

    code: str
    instance: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A finding that is gone; `seconds`: how long it was open."""

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
    """The state after `report`, which was made at `now` (monotonic seconds). Suppressed findings are not watched."""
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
    """The names as a phrase: "a", "a and b", "a, b and c", …, "a, b, c, d and 12 more"."""
    if len(all_) > SHOWN:
        return f"{', '.join(all_[:SHOWN])} and {len(all_) - SHOWN} more"
    return " and ".join(filter(None, (", ".join(all_[:-1]), *all_[-1:])))


def agreeing(sentence: str, who: str) -> str:
    """`sentence`, with the verb after `who` in the plural if `who` names several: "a and b have …"."""
    if " and " not in who:
        return sentence
    return re.sub(
        rf"{re.escape(who)} (\w+)", lambda found: f"{who} {PLURALS.get(found[1], found[1])}", sentence, count=1
    )


@dataclass(frozen=True, slots=True)
class Skipped:
    """The check does not apply here: `reason` tells the user why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The check applies, but what it needs could not be read: `reason` names it."""

    reason: str


NOT_FOR_EMBEDDED = Skipped("the embedded engine has no such fault")


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one code. `judge` is pure; if it returns no findings, it looked and all is well.

    Several checks may decide one code, each from different facts (a page size from the topology or /server_info).
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
    """A finding worded by the catalogue.

    `values` fill the placeholders of headline and fix, in addition to `instance`, `observed` and `expected`.
    `severity` None: the catalogue's.
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
        fix=fill_fix(said.fix, filled),
    )


def merge_findings(found: Iterable[Finding]) -> list[Finding]:
    """Merge like findings about several servers into one that names them all, at no instance."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in found:
        words = tuple(text.replace(one.instance, "\0", 1) if one.instance else text for text in (one.headline, one.fix))
        groups.setdefault((one.code, one.severity.value, one.observed, one.expected, *words), []).append(one)
    return [_join_findings(group) if len(group) > 1 else group[0] for group in groups.values()]


def _join_findings(group: list[Finding]) -> Finding:
    first, who = group[0], list(dict.fromkeys(one.instance for one in group))
    if len(who) == 1:
        return first
    several = names(who)
    evidence = dict.fromkeys(line for one in group for line in one.evidence)
    return replace(
        first,
        instance="",
        headline=agreeing(first.headline.replace(first.instance, several, 1), several),
        fix=_fix_for_all(first.fix, who, several),
        evidence=tuple(shorten_lines(list(evidence))),
    )


def _fix_for_all(fix: str, who: list[str], several: str) -> str:
    """The fix for all servers: an option that takes the server and a value is repeated for each."""
    first = pasteable(who[0])
    option = re.search(rf"--[a-z-]+ {re.escape(first)}(?: (?!-)\S+)?$", fix) if first else None
    if option is None:
        return fix.replace(first, pasteable(several), 1)
    return fix[: option.start()] + " ".join(option[0].replace(first, pasteable(one), 1) for one in who)
