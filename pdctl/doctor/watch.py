"""What changed between two reports of the same deployment: findings opened and resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.doctor.finding import Finding, Report


class Key(NamedTuple):
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

    open: Mapping[Key, tuple[Finding, float]]
    opened: tuple[Finding, ...] = ()
    resolved: tuple[Resolved, ...] = ()


def begin() -> Watched:
    return Watched({})


def advance(before: Watched, report: Report, now: float) -> Watched:
    """`report` was made at `now` (monotonic seconds). Suppressed findings are not watched."""
    current = {Key(each.code, each.instance): each for each in report.findings if not each.suppressed}
    resolved = tuple(Resolved(found, now - since) for key, (found, since) in before.open.items() if key not in current)
    return Watched(
        {key: (found, before.open[key][1] if key in before.open else now) for key, found in current.items()},
        tuple(found for key, found in current.items() if key not in before.open),
        resolved,
    )
