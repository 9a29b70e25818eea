"""One question doctor asks of the facts: which code it decides, what it must look at, and how it judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill
from pdctl.doctor.finding import Finding, agreeing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from pdctl.catalogue.entry import Needs, Severity
    from pdctl.doctor.facts import Facts

    Verdict: TypeAlias = "Iterable[Finding] | Skipped | Unknown"


@dataclass(frozen=True, slots=True)
class Skipped:
    """The question does not arise here: `reason` says why, for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The question arises, and what would answer it could not be read: `reason` names it."""

    reason: str


EMBEDDED = Skipped("the embedded engine has no such fault")


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
