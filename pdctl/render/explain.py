"""The catalogue as text (one full entry, a list of several, the checks), as JSON, and as the page docs/codes.md."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pdctl.catalogue.book import FAMILIES
from pdctl.catalogue.entry import Severity, fill, thread_address
from pdctl.render.term import as_json, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.catalogue.entry import Entry
    from pdctl.render.term import Term


CHECKS_SCHEMA = "pdctl.checks/1"
SCHEMA = "pdctl.catalogue/1"
WIDEST = 100  # columns of running text at most
NARROWEST = 40  # columns at least; a narrower terminal wraps the lines itself
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
FAULTS = "PD317"


def show_checks(entries: Iterable[Entry], term: Term) -> None:
    entries = tuple(entries)
    seen = [entry for entry in entries if not entry.unseen]
    unseen = [entry for entry in entries if entry.unseen]
    header = ("CODE", "SEVERITY", "SLUG", "NEEDS")
    rows = [(entry.code, entry.severity.value, entry.slug, _needs(entry)) for entry in seen]
    if not term.tty:
        for row in (header, *rows, *((e.code, e.severity.value, e.slug, f"not checkable: {e.unseen}") for e in unseen)):
            term.write("\t".join(row))
        return
    for line in table(term, header, rows):
        term.write(line)
    term.write()
    term.write(term.style("not checkable, because", "bold"))
    for entry in unseen:
        term.write(f"  {entry.code} {entry.slug}: {entry.unseen}")


def checks_json(entries: Iterable[Entry]) -> str:
    checks = [
        {
            "code": entry.code,
            "slug": entry.slug,
            "severity": entry.severity.value,
            "headline": headline(entry),
            "needs": [need.value for need in entry.needs],
            "not_checkable_because": entry.unseen or None,
        }
        for entry in entries
    ]
    return as_json({"schema": CHECKS_SCHEMA, "checks": checks})


def _needs(entry: Entry) -> str:
    return ", ".join(need.value for need in entry.needs)


def show(entry: Entry, term: Term) -> None:
    """Write one full entry. Placeholders are in capitals."""
    head = term.style(f"{entry.code} {entry.slug}", "bold")
    term.write(f"{head}  {term.style(entry.severity.value, COLOURS[entry.severity])}")
    for paragraph in (headline(entry), story(entry)[0]):
        term.write()
        for line in textwrap.wrap(
            paragraph, max(NARROWEST, min(term.width, WIDEST)), break_on_hyphens=False, break_long_words=False
        ):
            term.write(line)
    term.write()
    for name, text in _facts(entry):
        lines = textwrap.wrap(
            text, max(NARROWEST, min(term.width, WIDEST)) - 12, break_on_hyphens=False, break_long_words=False
        )
        for at, line in enumerate(lines):
            term.write(f"{term.style(name.ljust(11), 'dim') if at == 0 else ' ' * 11} {line}")
    rows = faults() if entry.code == FAULTS else ()
    if rows:
        term.write()
        for line in table(term, ("RELEASES", "WHERE", "REPORT", "FAULT"), rows):
            term.write(line)


def faults() -> list[tuple[str, str, str, str]]:
    """The table behind PD317: releases, where, report, fault."""
    from pdctl.engines.sglang.faults import FAULTS as ROWS  # late: only one code in a hundred needs it
    from pdctl.engines.versions import spell

    return [
        (
            f"{spell(row.since)} to before {spell(row.until)}",
            " ".join(filter(None, (row.component if row.component == "router" else row.role or "both", row.backend))),
            row.report,
            row.text + (f" (with {' and '.join(row.features)})" if row.features else ""),
        )
        for row in ROWS
    ]


def listing(entries: Sequence[Entry], term: Term) -> None:
    """Write one line per entry."""
    rows = [(entry.code, entry.severity.value, entry.slug, headline(entry)) for entry in entries]
    for line in table(term, ("CODE", "SEVERITY", "NAME", "MEANS"), rows):
        term.write(line)


def to_json(entries: Sequence[Entry]) -> str:
    rows = [
        {
            "code": entry.code,
            "slug": entry.slug,
            "severity": entry.severity.value,
            "headline": headline(entry),
            "explain": story(entry)[0],
            "look_next": story(entry)[1],
            "fix": fix(entry),
            "needs": [need.value for need in entry.needs],
            "versions": entry.versions,
            "source": entry.source,
            "reports": [{"name": report, "url": thread_address(report)} for report in entry.reports],
            "not_checked": entry.unseen,
        }
        for entry in entries
    ]
    return as_json({"schema": SCHEMA, "entries": rows})


def markdown(entries: Sequence[Entry]) -> str:
    """The page of all codes; `anchor` gives the fragment of each."""
    lines = [
        "# Codes",
        "",
        "Everything `pdctl doctor` and `pdctl trace-room` can name. A code never changes its meaning and is never used",
        "again. `pdctl explain CODE` prints an entry; this page is `pdctl explain --all -o markdown`.",
        "",
    ]
    for prefix, title, _ in FAMILIES:
        family = [entry for entry in entries if entry.code.startswith(prefix)]
        if family:
            lines += [f"## {title}", "", "| code | severity | |", "| --- | --- | --- |"]
            lines += [
                f"| [{entry.code}](#{anchor(entry)}) | {entry.severity.value} | {entry.slug} |" for entry in family
            ]
            lines.append("")
            lines += [line for entry in family for line in _section(entry)]
    return "\n".join(lines).rstrip() + "\n"


def anchor(entry: Entry) -> str:
    return f"{entry.code.lower()}-{entry.slug}"


def headline(entry: Entry) -> str:
    return fill(entry.headline, {})


def fix(entry: Entry) -> str:
    return fill(entry.fix, {})


def story(entry: Entry) -> tuple[str, str]:
    """What happens, and where to look next; the catalogue has both in one text."""
    told, _, after = entry.explain.partition(" Next: ")
    return told, after


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "look next", story(entry)[1]
    yield "fix", fix(entry)
    if entry.unseen:
        yield "not checked", entry.unseen
    else:
        yield "seen from", ", ".join(need.value for need in entry.needs)
    yield "versions", entry.versions
    yield "source", entry.source
    if entry.reports:
        yield "reports", ", ".join(entry.reports)


def _section(entry: Entry) -> Iterator[str]:
    yield from (f"### {entry.code} {entry.slug}", "", f"**{_plain(headline(entry))}**", "")
    yield from textwrap.wrap(_plain(story(entry)[0]), 120, break_on_hyphens=False, break_long_words=False)
    yield ""
    for name, text in _facts(entry):
        if name == "reports":
            text = ", ".join(f"[{report}]({thread_address(report)})" for report in entry.reports)
        elif name == "fix":
            text = f"`{text}`" if "`" not in text else text
        else:
            text = _plain(text)
        yield f"- {name}: {text}"
    yield ""
    if entry.code == FAULTS:
        yield from ("| releases | where | report | fault |", "| --- | --- | --- | --- |")
        yield from (f"| {' | '.join(map(_plain, row))} |" for row in faults())
        yield ""


def _plain(text: str) -> str:
    """Escape `text` for Markdown, except its code spans."""
    parts = text.split("`")
    parts[::2] = [
        part.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("|", "\\|") for part in parts[::2]
    ]
    return "`".join(parts)
