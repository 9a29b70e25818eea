"""Doctor's report as text: findings, then the port table, the canary matrix and what was checked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.catalogue import book
from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import CheckStatus
from pdctl.render.term import visible, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.doctor.check import BootstrapPortRow, CanaryCell, Checked, Finding, Report
    from pdctl.doctor.request import Progress
    from pdctl.render.term import Term

MARKS = {Severity.ERROR: ("✗", "x", "red"), Severity.WARNING: ("!", "!", "yellow"), Severity.INFO: ("·", "-", "cyan")}
COLUMNS = ("flag", "server_info", "bootstrap", "router", "annotation")
WAYS = ("needs ", "no load is given", "no workload is given")  # beginnings of skip reasons that say what is missing
FEW = 6  # codes named in one line
NOT_CHECKABLE = "not checkable, because"
NEVER = "not checkable (pdctl doctor --list-checks says why)"
LABEL = 9  # width of "observed", "evidence" and a space
TITLE = 2 + max(len(family.title) for family in book.FAMILIES)  # width of the column
PATIENCE = 1.0  # seconds before the first progress line


def show(report: Report, term: Term, verbose: bool = False) -> None:
    """Write the report. verbose: also list every check that was made, and why the others were not."""
    term.write(term.style(f"doctor {visible(report.title, term)}", "bold") + term.style(f"  ({report.depth})", "dim"))
    for found in report.findings:
        term.write()
        finding(found, term)
    columns = [name for name in COLUMNS if any(getattr(row, name) is not None for row in report.ports)]
    if columns:
        term.write()
        _ports(report.ports, columns, term)
    if report.matrix:
        term.write()
        _matrix(report.matrix, term)
    term.write()
    _checks(report, term, verbose)
    term.write(summary(report, term))


def finding(found: Finding, term: Term) -> None:
    """Write one finding: headline, observed against expected, evidence, one fix."""
    fancy, plain, color = MARKS[found.severity]
    mark = term.style(term.symbol(fancy, plain), color, "bold")
    where = f"  {visible(found.instance, term)}" if found.instance else ""
    name = term.style(f"{found.code} {found.slug}", color, "bold")
    term.write(f"{mark} {name}{term.style(where, 'bold')}")
    _lines("", found.headline, term)
    if found.suppressed:
        _lines("ignored", found.suppressed, term)
        return
    if found.observed:
        _lines("observed", found.observed, term)
    if found.expected:
        _lines("expected", found.expected, term)
    for at, line in enumerate(found.evidence):
        _lines("evidence" if at == 0 else "", line, term, indent=True)
    if found.fix:
        _fix(found.fix, term)


def _lines(label: str, text: str, term: Term, indent: bool = False, mark: str = "") -> None:
    """Write a labelled paragraph: wrapped between words on a terminal, one line in a pipe.

    text: may come from outside and is escaped; mark: one column wide, is ours and may have colour.
    """
    width = term.width if term.tty else 10**6
    margin = " " * (2 + LABEL if label or indent else 2)
    line = "  " + term.style(label.ljust(LABEL), "dim") if label else margin
    used = len(margin)
    if mark:
        line, used = f"{line}{mark} ", used + 2
        margin = " " * used
    for word in visible(text, term).split():
        if used > len(margin) and used + 1 + len(word) > width:
            term.write(line.rstrip())
            line, used = margin, len(margin)
        if used > len(margin):
            line, used = line + " ", used + 1
        line, used = line + word, used + len(word)
    term.write(line.rstrip())


def _fix(text: str, term: Term) -> None:
    """Write the fix, never wrapped, so that it can be pasted."""
    first, *rest = [visible(line, term) for line in text.splitlines()] or [""]
    term.write("  " + term.style("fix".ljust(LABEL), "dim") + term.style(first, "bold"))
    for line in rest:
        term.write(" " * (2 + LABEL) + term.style(line, "bold"))


def _ports(rows: Sequence[BootstrapPortRow], columns: Sequence[str], term: Term) -> None:
    """Write the port table. columns: those with a value in some row. The odd value is marked and coloured."""
    term.write(term.style("bootstrap ports", "bold"))
    cells = [(visible(row.prefill, term), *(_port(row, name, term) for name in columns)) for row in rows]
    write_table(("PREFILL", *(name.upper() for name in columns)), cells, term)


def _port(row: BootstrapPortRow, column: str, term: Term) -> str:
    value = getattr(row, column)
    if value is None:
        return term.symbol("–", "-")
    return term.style(f"{value} {term.symbol('✗', 'x')}", "red", "bold") if row.odd == column else str(value)


def _matrix(cells: Sequence[CanaryCell], term: Term) -> None:
    term.write(term.style("canary: one real request per pair", "bold"))
    prefills = dict.fromkeys(cell.prefill for cell in cells)
    decodes = dict.fromkeys(cell.decode for cell in cells)
    found = {(cell.prefill, cell.decode): cell for cell in cells}
    rows = [
        (visible(prefill, term), *(_cell(found.get((prefill, each)), term) for each in decodes)) for prefill in prefills
    ]
    write_table(("PREFILL", *(visible(each, term) for each in decodes)), rows, term)
    for reason, count in Counter(cell.reason for cell in cells if cell.ok is not True and cell.reason).items():
        _lines("", f"{count} × {reason}" if count > 1 else reason, term)


def _cell(cell: CanaryCell | None, term: Term) -> str:
    if cell is None or cell.ok is None:
        return term.symbol("–", "-")
    seconds = "" if cell.seconds is None else f" {cell.seconds:.2f} s"
    if cell.ok:
        return term.style(term.symbol("✓", "ok"), "green") + seconds
    return term.style(term.symbol("✗", "x"), "red", "bold") + seconds


def _checks(report: Report, term: Term, verbose: bool) -> None:
    checks = report.checks
    worst = _worst(report.findings)
    skipped = sorted(_by_reason(checks, CheckStatus.SKIPPED).items(), key=lambda group: -len(group[1]))
    if verbose:
        for each in checks:
            if each.status is not CheckStatus.SKIPPED:
                slug = book.find_entry(each.code).slug
                reason = f"  {visible(each.reason, term)}" if each.reason else ""
                term.write(f"  {_mark(each.status, term)} {each.code} {slug}{term.style(reason, 'dim')}")
        for reason, codes in skipped:
            _lines(
                "", f"{len(codes)} skipped: {reason}: {' '.join(codes)}", term, mark=_mark(CheckStatus.SKIPPED, term)
            )
        return
    for prefix, title, _ in book.FAMILIES:
        family = [each for each in checks if each.code.startswith(prefix)]
        if family:
            term.write(f"  {_family_mark(family, worst, term)} {title.ljust(TITLE)}{term.style(_tally(family), 'dim')}")
    for reason, codes in _by_reason(checks, CheckStatus.UNKNOWN).items():
        _lines("", f"unknown {_few(codes)}: {reason}", term, mark=_mark(CheckStatus.UNKNOWN, term))
    rest = 0
    for reason, codes in skipped:
        if reason.startswith(WAYS):
            _lines("", f"{len(codes)} skipped: {reason}", term, mark=_mark(CheckStatus.SKIPPED, term))
        else:
            rest += len(codes)
    if rest:
        what = "they do not apply" if rest > 1 else "it does not apply"
        _lines("", f"{rest} skipped: {what} here (-v says why)", term, mark=_mark(CheckStatus.SKIPPED, term))


def _few(codes: Sequence[str]) -> str:
    return ", ".join(codes[:FEW]) + (f" and {len(codes) - FEW} more" if len(codes) > FEW else "")


def _by_reason(checks: Sequence[Checked], status: CheckStatus) -> dict[str, list[str]]:
    """Codes by the first of their reasons; those that cannot be checked form one group."""
    grouped: dict[str, list[str]] = {}
    for each in checks:
        if each.status is status:
            reason = NEVER if each.reason.startswith(NOT_CHECKABLE) else each.reason.partition("; ")[0]
            grouped.setdefault(reason, []).append(each.code)
    return grouped


def _worst(findings: Sequence[Finding]) -> Mapping[str, Severity]:
    """Code → the most severe of its findings that is not accepted."""
    order = list(MARKS)
    found: dict[str, Severity] = {}
    for each in findings:
        before = found.get(each.code)
        if not each.suppressed and (before is None or order.index(each.severity) < order.index(before)):
            found[each.code] = each.severity
    return found


def _family_mark(family: Sequence[Checked], worst: Mapping[str, Severity], term: Term) -> str:
    seen = {each.status for each in family}
    for severity, (fancy, plain, color) in MARKS.items():
        if any(worst.get(each.code) is severity for each in family):
            return term.style(term.symbol(fancy, plain), color)
    if CheckStatus.FINDING in seen:
        seen.add(CheckStatus.OK)  # its findings are accepted
    return _mark(
        next(status for status in (CheckStatus.UNKNOWN, CheckStatus.OK, CheckStatus.SKIPPED) if status in seen), term
    )


def _mark(status: CheckStatus, term: Term) -> str:
    fancy, plain, color = {
        CheckStatus.OK: ("✓", "+", "green"),
        CheckStatus.FINDING: ("✗", "x", "red"),
        CheckStatus.SKIPPED: ("–", "-", "dim"),
        CheckStatus.UNKNOWN: ("?", "?", "yellow"),
    }[status]
    return term.style(term.symbol(fancy, plain), color)


def _tally(family: Sequence[Checked]) -> str:
    count = Counter(each.status for each in family)
    words = {
        CheckStatus.FINDING: "with findings",
        CheckStatus.OK: "ok",
        CheckStatus.UNKNOWN: "unknown",
        CheckStatus.SKIPPED: "skipped",
    }
    return ", ".join(f"{count[status]} {word}" for status, word in words.items() if count[status])


def summary(report: Report, term: Term) -> str:
    """One line: problems, then what was and was not checked, and how long it took."""
    active = [found for found in report.findings if not found.suppressed]
    severity = Counter(found.severity for found in active)
    parts = [_plural(severity[each], each.value) for each in (Severity.ERROR, Severity.WARNING) if severity[each]]
    ignored = len(report.findings) - len(active)
    parts += [f"{ignored} ignored"] if ignored else []
    status = Counter(each.status for each in report.checks)
    done = f"{status[CheckStatus.OK] + status[CheckStatus.FINDING]} checks, {status[CheckStatus.SKIPPED]} skipped"
    done += f", {status[CheckStatus.UNKNOWN]} unknown" if status[CheckStatus.UNKNOWN] else ""
    parts += [f"selected but not checked: {_few(sorted(report.unchecked))}"] if report.unchecked else []
    open_question = severity[Severity.WARNING] or report.unchecked
    color = "red" if severity[Severity.ERROR] else "yellow" if open_question else "green"
    head = ", ".join(parts) or "no problems found"
    return f"{term.style(head, color, 'bold')} ({done}, {report.seconds:.1f} s)"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("s" if count != 1 else "")


class Looking:
    """One line that says what doctor is checking, where it can be erased. Called from several threads."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._began = time.monotonic()
        self._drawn = False
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        if not self._term.moves or time.monotonic() - self._began < PATIENCE:
            return
        count = f" {progress.done} of {progress.total}" if progress.total > 1 else ""
        with self._lock:
            self._drawn = True
            self._term.stream.write(f"\rlooking at {progress.what}{count}\x1b[K")
            self._term.stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._drawn:
            self._term.stream.write("\r\x1b[K")
            self._term.stream.flush()
            self._drawn = False
