"""Every code doctor and trace-room know: severity, what it takes to see it, and those nothing can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import table
from pdctl.render.visible import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.catalogue.entry import Entry
    from pdctl.render.term import Term

SCHEMA = "pdctl.checks/1"


def show(entries: Iterable[Entry], term: Term) -> None:
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


def to_json(entries: Iterable[Entry]) -> str:
    checks = [
        {
            "code": entry.code,
            "slug": entry.slug,
            "severity": entry.severity.value,
            "headline": entry.headline,
            "needs": [need.value for need in entry.needs],
            "not_checkable_because": entry.unseen or None,
        }
        for entry in entries
    ]
    return as_json({"schema": SCHEMA, "checks": checks})


def _needs(entry: Entry) -> str:
    return ", ".join(need.value for need in entry.needs)
