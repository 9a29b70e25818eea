"""Rows of the dialects, and what `pdctl dialect check` found in logs, as text and JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pdctl.engines import versions
from pdctl.engines.kinds import RELEASED
from pdctl.engines.versions import released, spell
from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import as_json, elided, prose, table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engines.base import Row
    from pdctl.engines.identify import Identity
    from pdctl.engines.row_matching import Survey
    from pdctl.engines.versions import Release, Span, Version
    from pdctl.render.term import Term

ROWS, CHECK = "pdctl.dialect-rows/1", "pdctl.dialect-check/1"
HEAD = ("ROW", "SPEAKER", "LEVEL", "ROLE", "RELEASES", "PROVES", "CODE", "NEEDS")
SHOWN = 12  # rows shown per log on a terminal; a pipe gets all
KINDS = {"flags": ("flags", "flag", "--"), "env": ("environment", "name", "")}


class CheckedLog(NamedTuple):
    instance: str
    paths: tuple[str, ...]
    identity: Identity
    survey: Survey


def rows(found: Sequence[Row], term: Term) -> None:
    """A table on a terminal; in a pipe one line per row, separated by tabs, the example last."""
    cells = [
        (
            row.id, row.speaker.value, row.level.value, row.role or "-", releases(row.span),
            ("echo" if row.echo else row.phase.value if row.phase else "-"), row.cause or "-", row.needs or "-",
        )
        for row in found
    ]  # fmt: skip
    if not term.tty:
        for row, line in zip(found, cells, strict=True):
            term.write("\t".join((*line, row.example)))
        return
    for text in table(term, HEAD, cells):
        term.write(text)
    term.write(f"{len(found)} rows; `-o json` has patterns and examples")


def rows_json(found: Sequence[Row]) -> str:
    documents = [
        {
            "id": row.id,
            "speaker": row.speaker.value,
            "level": row.level.value,
            "role": row.role or None,
            "literal": row.literal.decode(),
            "pattern": row.pattern,
            "example": row.example,
            "since": spell(row.span.since),
            "until": _spelt(row.span.until),
            "phase": row.phase.value if row.phase else None,
            "backend": row.backend or None,
            "cause": row.cause or None,
            "echo": row.echo,
            "needs": row.needs or None,
            "proves": [sign.value for sign in row.proves],
            "reached": row.reached.value if row.reached else None,
        }
        for row in found
    ]
    return as_json({"schema": ROWS, "rows": documents})


def _totals(found: Sequence[CheckedLog]) -> dict[str, object]:
    return {
        "logs": len(found),
        "lines": sum(each.survey.lines for each in found),
        "known": sum(each.survey.known for each in found),
        "speakers": dict(Counter(_kind(each.identity) for each in found)),
    }


class Dated(NamedTuple):
    """A flag or variable, with the span of releases that has it and contains the requested release."""

    name: str
    span: Span


def items(kind: str, version: Version, package: str = RELEASED) -> list[Dated]:
    """The flags (`flags`) or environment variables (`env`) of a release, by name."""
    table, _, dashes = KINDS[kind]
    found = []
    for name in versions.names(table, version, package=package):
        span = next(span for span in versions.spans(table, name, package=package) if span.holds(version))
        found.append(Dated(dashes + name, span))
    return found


def items_json(kind: str, release: Release, found: Sequence[Dated], package: str = RELEASED) -> str:
    """`until` is null if the newest release that was read has it. `note` is present for a release that was not read."""
    _, word, _ = KINDS[kind]
    rows = [{word: one.name, "since": spell(one.span.since), "until": _spelt(one.span.until)} for one in found]
    document: dict[str, object] = {"schema": f"pdctl.{kind}/1", "version": release.asked}
    if package != RELEASED:
        document["package"] = package
    if release.note:
        document["note"] = release.note
    document[kind] = rows
    return as_json(document)


def items_text(kind: str, release: Release, found: Sequence[Dated], term: Term, package: str = RELEASED) -> None:
    """A table on a terminal; in a pipe one line per item: name, since, until, separated by tabs."""
    _, word, _ = KINDS[kind]
    cells = [(one.name, spell(one.span.since), _spelt(one.span.until) or "-") for one in found]
    if not term.tty:
        for line in cells:
            term.write("\t".join(line))
        return
    for text in table(term, (word.upper(), "SINCE", "UNTIL"), cells):
        term.write(text)
    what = "flags" if kind == "flags" else "environment variables"
    oldest = spell(released(package)[0])
    term.write(f"{len(found)} {what} of {package} {spell(release.known)}; {oldest} is the oldest release that was read")


def _summary(found: Sequence[CheckedLog], term: Term) -> None:
    """Write one line about all logs together."""
    count = Counter(_kind(each.identity) for each in found)
    total = sum(each.survey.lines for each in found)
    known = sum(each.survey.known for each in found)
    logs = "1 log" if len(found) == 1 else f"{len(found)} logs"
    term.write(
        f"{logs}, {total} lines, {known} of them known: " + ", ".join(_plural(n, who) for who, n in count.items())
    )


def _kind(identity: Identity) -> str:
    if identity.speaker is None:
        return "unknown speaker"
    version = f" {bounds(identity.since, identity.until)}" if identity.since or identity.until else ""
    role = f" {identity.role}" if identity.role and identity.role != "router" else ""
    return f"{identity.speaker.value}{version}{role}"


def _plural(number: int, what: str) -> str:
    return what if number == 1 else f"{number} × {what}"


def checked(found: Sequence[CheckedLog], unknown: int, term: Term) -> None:
    if not term.tty:
        for each in found:
            _tabbed(each, unknown, term)
        return
    _summary(found, term)
    for each in found:
        term.write()
        _log(each, unknown, term)


def checked_json(found: Sequence[CheckedLog], unknown: int) -> str:
    totals = _totals(found)
    return as_json({"schema": CHECK, "summary": totals, "logs": [_document(each, unknown) for each in found]})


def releases(span: Span) -> str:
    """`0.5.13+`, `0.5.3 to before 0.5.13`."""
    return bounds(span.since, span.until)


def bounds(since: Version | None, until: Version | None) -> str:
    if since and until:
        return f"{spell(since)} to before {spell(until)}"
    if since:
        return f"{spell(since)}+"
    return f"before {spell(until)}" if until else "any"


def _title(each: CheckedLog, term: Term) -> str:
    identity = each.identity
    who = identity.speaker.value if identity.speaker else "unknown speaker"
    version = bounds(identity.since, identity.until) if identity.since or identity.until else ""
    parts = (who, version, identity.role, identity.backend, f"level {identity.level.value}" if identity.level else "")
    return f"{term.style(each.instance, 'bold')}: {', '.join(part for part in parts if part)}"


def _log(each: CheckedLog, unknown: int, term: Term) -> None:
    seen = each.survey
    term.write(_title(each, term))
    share = f"{seen.known / (seen.known + seen.unknown):.0%}" if seen.known + seen.unknown else "nothing"
    term.write(f"  {seen.lines} lines: {seen.known} known, {seen.unknown} unknown ({share} known)")
    for fact in _facts(each.identity):
        term.write(f"  {visible(fact, term)}")
    for reason in each.identity.reasons:
        for line in prose(term, "  because", visible(reason, term), "dim"):
            term.write(line)
    for counted in seen.rows[:SHOWN]:
        term.write(f"  {counted.lines:7}  {counted.row.id}")
    if len(seen.rows) > SHOWN:
        term.write(f"           and {len(seen.rows) - SHOWN} rows more (-o json has all)")
    if unknown and seen.shapes:
        term.write("  unknown lines, the commonest shapes:")
        for shape in seen.shapes[:unknown]:
            term.write(f"  {shape.lines:7}  {elided(visible(shape.text, term), max(20, term.width - 12))}")


def _facts(identity: Identity) -> list[str]:
    facts = []
    if identity.port is not None:
        facts.append(f"port {identity.port}")
    if identity.bootstrap_port is not None:
        facts.append(f"bootstrap port {identity.bootstrap_port}")
    for target in identity.prefills:
        port = "no bootstrap port: sends null" if target.port is None else f"bootstrap port {target.port}"
        facts.append(f"routes to prefill {target.url}, {port}")
    facts += [f"{name} time-out {seconds:g} s" for name, seconds in identity.timeouts.items()]
    return facts


def _tabbed(each: CheckedLog, unknown: int, term: Term) -> None:
    """Tab-separated fields log, kind, count, text: one line per log, row and shape."""
    identity, seen = each.identity, each.survey
    words = (
        identity.speaker.value if identity.speaker else "-", identity.role or "-",
        bounds(identity.since, identity.until) if identity.since or identity.until else "-", identity.backend or "-",
        identity.level.value if identity.level else "-",
    )  # fmt: skip
    term.write("\t".join((each.instance, "log", str(seen.lines), *words)))
    term.write("\t".join((each.instance, "known", str(seen.known))))
    term.write("\t".join((each.instance, "unknown", str(seen.unknown))))
    for reason in identity.reasons:
        term.write("\t".join((each.instance, "because", "", visible(reason, term))))
    for counted in seen.rows:
        term.write("\t".join((each.instance, "row", str(counted.lines), counted.row.id)))
    for shape in seen.shapes[:unknown]:
        term.write("\t".join((each.instance, "shape", str(shape.lines), shape.text)))


def _document(each: CheckedLog, unknown: int) -> dict[str, object]:
    identity, seen = each.identity, each.survey
    return {
        "instance": each.instance,
        "files": list(each.paths),
        "speaker": identity.speaker.value if identity.speaker else None,
        "role": identity.role or None,
        "since": _spelt(identity.since),
        "until": _spelt(identity.until),
        "backend": identity.backend or None,
        "level": identity.level.value if identity.level else None,
        "port": identity.port,
        "bootstrap_port": identity.bootstrap_port,
        "log_requests": identity.log_requests,
        "time_stats": identity.time_stats,
        "timeouts": dict(identity.timeouts),
        "facts": dict(identity.facts),
        "prefills": [{"url": target.url, "bootstrap_port": target.port} for target in identity.prefills],
        "reasons": list(identity.reasons),
        "lines": seen.lines,
        "known": seen.known,
        "unknown": seen.unknown,
        "empty": seen.empty,
        "rows": [{"id": counted.row.id, "lines": counted.lines} for counted in seen.rows],
        "shapes": [
            {"shape": shape.text, "lines": shape.lines, "example": shape.example} for shape in seen.shapes[:unknown]
        ],
    }


def _spelt(version: Version | None) -> str | None:
    return None if version is None else spell(version)
