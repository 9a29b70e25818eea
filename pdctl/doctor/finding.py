"""What doctor concludes: findings with a stable code, what could not be decided, and what changed since."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.catalogue.entry import Severity

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
