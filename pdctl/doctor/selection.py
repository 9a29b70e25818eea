"""Which codes are wanted, which findings are known and accepted, and from which severity on a run fails."""

from __future__ import annotations

import datetime
import fnmatch
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.catalogue import book
from pdctl.catalogue.entry import Severity
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.doctor.check import Finding, Report
    from pdctl.topology.model import Topology

ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Suppression:
    """Findings of `codes` at instances that match the glob `where` are accepted, for a reason, `until` a date.

    place: where this was written, for messages.
    """

    codes: frozenset[str]
    because: str
    where: str = "*"
    until: datetime.date | None = None
    place: str = ""

    def means(self, found: Finding) -> bool:
        return found.code in self.codes and fnmatch.fnmatchcase(found.instance, self.where)

    def expired(self, today: datetime.date) -> bool:
        """Whether it no longer applies; `until` is the last day on which it does."""
        return self.until is not None and today > self.until


@dataclass(frozen=True, slots=True)
class Selection:
    """`codes` None: every code. `fail_on` None: never fail because of a finding.

    patterns: the codes that each pattern of `--select` means.
    """

    codes: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()
    suppressions: tuple[Suppression, ...] = ()
    fail_on: Severity | None = Severity.ERROR
    today: datetime.date | None = None  # None: today
    patterns: tuple[frozenset[str], ...] = ()

    def wants(self, code: str) -> bool:
        return (self.codes is None or code in self.codes) and code not in self.ignored

    @property
    def date(self) -> datetime.date:
        return self.today or datetime.date(*time.localtime()[:3])


EVERYTHING = Selection()


def read(
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    fail_on: str = Severity.ERROR.value,
    suppressions: Iterable[Suppression] = (),
) -> Selection:
    """The selection of patterns as typed: codes, prefixes (`PD2`), slugs or globs, several separated by commas.

    Raise UsageError if a pattern matches no code, or the severity is unknown.
    """
    patterns = [_codes((word,)) for each in select for word in each.split(",") if word.strip()]
    wanted, ignored = frozenset().union(*patterns), _codes(ignore)
    if ignored >= (wanted or {entry.code for entry in book.ENTRIES}):
        raise UsageError("--ignore leaves nothing to check", "ignore fewer codes; pdctl doctor --list-checks lists all")
    return Selection(
        codes=wanted or None,
        ignored=ignored,
        suppressions=tuple(suppressions),
        fail_on=_severity(fail_on),
        patterns=tuple(filter(None, (each - ignored for each in patterns))),
    )


def suppression(code: str, because: str, where: str = "*", until: str = "", place: str = "") -> Suppression:
    """One entry of a topology's `doctor: ignore:` list. Raise UsageError naming `place` and what is wrong."""
    at = f"{place}: " if place else ""
    if not because.strip():
        raise UsageError(
            f"{at}{code} is ignored without a reason", "say why: `because: accepted until the next rollout`"
        )
    try:
        codes = _codes((code,))
    except UsageError as error:
        raise UsageError(at + error.message, error.fix) from None
    return Suppression(codes, because.strip(), where or "*", _date(until, at), place)


def accepted(topology: Topology) -> tuple[Suppression, ...]:
    """The findings that the topology's `doctor: ignore:` list accepts."""
    found = []
    for at, entry in enumerate(topology.ignored):
        span = topology.spans.get(f"doctor.ignore[{at}]")
        place = f"{span.file}:{span.line}" if span is not None else f"doctor.ignore[{at}]"
        found.append(suppression(entry.code, entry.because, entry.where or "*", entry.until or "", place))
    return tuple(found)


def weigh(found: Finding, selection: Selection) -> Finding:
    """The finding after the suppressions: accepted, with a note that one has expired, or unchanged."""
    for each in selection.suppressions:
        if not each.means(found):
            continue
        if not each.expired(selection.date):
            return replace(found, suppressed=each.because)
        note = f"accepted until {each.until} ({each.because}); that day has passed"
        found = replace(found, evidence=(*found.evidence, note))
    return found


def failing(report: Report, fail_on: Severity | None) -> tuple[Finding, ...]:
    """The findings that make a run fail."""
    if fail_on is None:
        return ()
    bar = ORDER.index(fail_on)
    return tuple(one for one in report.findings if not one.suppressed and ORDER.index(one.severity) <= bar)


def _codes(patterns: Iterable[str]) -> frozenset[str]:
    words = [word for pattern in patterns for word in pattern.split(",") if word.strip()]
    return frozenset(entry.code for entry in book.select(words)) if words else frozenset()


def _severity(word: str) -> Severity | None:
    word = word.strip().lower()
    if word == NEVER:
        return None
    named = {"warn": "warning"}.get(word, word)
    for severity in Severity:
        if severity.value == named:
            return severity
    raise UsageError(f"no severity `{word}`", "--fail-on error, warning, info or never")


def _date(text: str, at: str) -> datetime.date | None:
    if not text:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{at}`until: {text}` is not a day", "write it as 2026-12-31") from None
