"""What doctor concludes: findings with a stable code, and for every check whether it could be decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.catalogue.entry import Severity


class Status(str, Enum):
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
    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PortRow:
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
class Cell:
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
    ports: tuple[PortRow, ...]
    matrix: tuple[Cell, ...]
    seconds: float
    blind: bool = False
