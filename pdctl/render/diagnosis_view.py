"""A diagnosis as text, as JSON (`pdctl.diagnose/1`) and as JSON lines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from pdctl.render.term import fitted, prose, table, visible
from pdctl.render.trace import wording
from pdctl.render.trace.room_json import ascii_json, dumped
from pdctl.render.trace.wording import MARKS, Places, escape_all
from pdctl.trace.deployment_report import SourceKind

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pdctl.render.term import Term
    from pdctl.trace.deployment_report import (
        Death,
        DeploymentFinding,
        Diagnosis,
        JudgedDeployment,
        LogSource,
    )
    from pdctl.trace.room import Evidence

    Parts = dict[str, object]

SCHEMA = "pdctl.diagnose/1"
NO_PAIR = "PD602"  # a router found no pair for a request
PARTS = {
    "death": "deaths", "finding": "findings", "remark": "remarks", "unknown": "unknowns", "source": "sources",
}  # fmt: skip
ROOMS = 3  # rooms of a finding named in the text
LINES = 4  # lines of evidence per finding


def show(found: Diagnosis, term: Term, zone: dt.tzinfo | None = None) -> None:
    """Write the diagnosis as text. zone: of the times shown; None is this machine's."""
    first = True
    for block in _blocks(escape_all(found, term), term, zone):
        if not block:
            continue
        if not first:
            term.write()
        for line in block:
            term.write(line.rstrip())
        first = False


def show_each(found: Sequence[JudgedDeployment], term: Term, zone: dt.tzinfo | None = None) -> None:
    """Of several deployments first a line for each, then in full what is wrong with which."""
    if len(found) == 1:
        show(found[0].diagnosis, term, zone)
        return
    wrong = [each for each in found if each.diagnosis.wrong]
    fine = sum(each.diagnosis.fine for each in found)
    untold = len(found) - len(wrong) - fine
    said = f"{len(wrong)} with something wrong, {fine} fine, {untold} of which the logs do not tell"
    term.write(
        term.style(f"{len(found)} deployments, by their directories and times, each judged by itself: {said}", "bold")
    )
    for each in found:
        shown = escape_all(each.diagnosis, term)
        term.write(_headline(shown, term, zone, visible(each.directory, term))[0])
    for each in wrong:
        term.write()
        term.write(term.style(f"{visible(each.directory, term)}:", "bold"))
        show(each.diagnosis, term, zone)


def _blocks(found: Diagnosis, term: Term, zone: dt.tzinfo | None) -> Iterator[list[str]]:
    shown = [each.evidence for each in found.deaths] + [each.evidence for each in found.findings]
    files = [line.file for lines in shown for line in lines]
    places = Places([*files, *(remark.first.file for remark in found.remarks)], term)
    yield _headline(found, term, zone)
    for death in found.deaths:
        yield _death(death, found, term, places, zone)
    for finding in found.findings:
        yield _finding(finding, term, places, zone)
    yield _rooms(found, term)
    yield _remarks(found, term, places)
    yield _unknowns(found, term)
    yield _sources(found.sources, term, zone)
    yield [
        line for clock in found.clocks for line in prose(term, "clock:", wording.describe_clock(clock, term), "bold")
    ]
    if found.contradiction and found.wrong:
        yield prose(term, "note:", found.contradiction, "dim")
    yield [line for note in found.notes for line in prose(term, "note:", note, "dim")]


def _headline(found: Diagnosis, term: Term, zone: dt.tzinfo | None, directory: str = "") -> list[str]:
    if found.contradiction and not found.wrong:
        mark, said = MARKS["unknown"], f"these logs cannot be judged together: {found.contradiction}"
    elif found.empty and found.window is not None and not found.wrong:
        mark, said = MARKS["unknown"], f"no line was written {wording.window(found.window, zone)}"
    elif not found.wrong and not found.told:
        several = any(each.kind is SourceKind.MIXED for each in found.sources)
        why = "no line is an engine's or a router's"
        if several:
            why = "lines of several processes alternate without names"
        elif any(each.kind is SourceKind.ROUTER for each in found.sources):
            why = f"a router's log alone was understood, not {_some_names(found.unread)}"
        elif any(each.kind is SourceKind.ENGINE for each in found.sources):
            why = "no line tells whether they are a prefill's or a decode's"
        mark, said = MARKS["unknown"], f"these logs do not tell what happened: {why}"
    elif not found.wrong and not found.served:
        mark, said = MARKS["unknown"], f"nothing wrong was found, and nothing shows that it serves: {_unserved(found)}"
    elif (found.lost or found.lost_lines) and not found.wrong:
        mark, said = MARKS["unknown"], f"nothing wrong was found in what was written: {_lost(found)}"
    elif not found.wrong:
        mark, said = MARKS["ok"], "nothing wrong was found"
        if found.unread:
            said += f" in the logs that were understood; not understood: {_some_names(found.unread)}"
    else:
        parts = [found.ended.partition(";")[0]] if found.ended else []
        if found.deaths:
            names = ", ".join(dict.fromkeys(each.instance for each in found.deaths))
            parts.append(f"{names} died")
        parts += dict.fromkeys(f"{each.code} {each.slug}" for each in found.findings if each.grave)
        if found.tally.unexplained:
            parts.append(f"{_count(len(found.tally.unexplained), 'room')} broke without a known cause")
        mark, said = MARKS["failed"], "; ".join(parts) or f"{_count(found.tally.broken, 'room')} broke"
    sign = term.symbol(mark.symbol, mark.plain)
    if directory:
        return [term.style(f"{sign} {directory}: {said}", mark.style)]
    began = [each.began for each in found.sources if each.began is not None]
    return [*(term.style(line, mark.style, "bold") for line in prose(term, sign, said)), *_read(found, began, zone)]


def _lost(found: Diagnosis) -> str:
    if not found.lost_lines:
        return "lines were lost (see the note)"
    return f"{_count(sum(one.lines for one in found.lost_lines), 'line')} could not be (see below)"


def _unserved(found: Diagnosis) -> str:
    """What the logs show instead of an answered request."""
    rooms = {outcome: count for outcome, count in found.tally.rooms.items() if count}
    if not rooms:
        refused = next((each for each in found.remarks if each.code == NO_PAIR), None)
        said = f"; {refused.instance} says {refused.lines} times: {refused.first.text.strip()}" if refused else ""
        return f"no line of these logs is about a request that was answered{said}"
    seen = ", ".join(f"{rooms[outcome]} {outcome}" for outcome in MARKS if outcome in rooms)
    return f"of {_count(sum(rooms.values()), 'room')} in these logs none is known to have gone well ({seen})"


def _some_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - ROOMS} more" if len(names) > ROOMS else ""
    return ", ".join(names[:ROOMS]) + more


def _read(found: Diagnosis, began: Sequence[float], zone: dt.tzinfo | None) -> list[str]:
    lines = sum(each.lines for each in found.sources)
    whole = f"{_count(len(found.sources), 'log')}, {_count(lines, 'line')}{'' if began else ', none with a time'}"
    if found.window is None:
        return [whole]
    return [f"only lines {wording.window(found.window, zone)} count; the logs as a whole: {whole}"]


def _death(each: Death, found: Diagnosis, term: Term, places: Places, zone: dt.tzinfo | None) -> list[str]:
    since, at = (wording.moment(t, zone).strftime("%Y-%m-%d %H:%M:%S") for t in (each.since, each.at))
    when = f"at {at}" if since == at else f"between {since} and {at}"
    head = f"{each.instance} ({each.role or 'role unknown'}) died {when}: {each.why}"
    took = []
    if each.rooms:
        took.append(f"{_count(len(each.rooms), 'room')} ({_some(each.rooms)}){_retried(each)}")
    unnamed = (each.running or 0) - len(each.rooms)  # the rooms may be among the requests that ran
    if unnamed > 0:
        what = _count(unnamed, "more running request" if each.rooms else "running request")
        took.append(f"{'at least ' if each.rooms else ''}{what} by its last batch line")
    lines = [term.style(line, "red", "bold") for line in prose(term, term.symbol("✗", "x"), head)]
    lines += prose(term, "  code:", f"{each.code} {each.slug}: {each.headline}", "dim")
    along = " and ".join(took) or _spared(found)
    lines += prose(term, "  took along:", along, "bold")
    if each.back is not None:
        again = f"started at {wording.moment(each.back, zone):%Y-%m-%d %H:%M:%S}"
        lines += prose(term, "  since then:", f"{again}{', and has answered requests since' if each.serves else ''}")
    return [*lines, *_evidence(each.evidence, term, places), f"{term.style('  fix:', 'green', 'bold')} {each.fix}"]


def _retried(each: Death) -> str:
    if not each.retried:
        return ""
    which = "each" if each.retried == len(each.rooms) else f"{each.retried} of them"
    return f", {which} tried again by the router and answered under another room"


def _spared(found: Diagnosis) -> str:
    """Why no room is known to have broken because of a death: none did, or these logs name none."""
    number = sum(found.tally.rooms.values())
    if number:
        return f"none of the {_count(number, 'room')} in these logs"
    return "not told: these logs name no room"


def _finding(each: DeploymentFinding, term: Term, places: Places, zone: dt.tzinfo | None) -> list[str]:
    style = "red" if each.grave else "yellow"
    sign = term.symbol("✗", "x") if each.grave else "!"
    lines = [term.style(line, style, "bold") for line in prose(term, f"{sign} {each.code} {each.slug}:", each.headline)]
    lines += prose(term, "  why:", each.why, "bold")
    if each.rooms:
        lines += prose(term, "  rooms:", f"{len(each.rooms)} ({_some(each.rooms)}){_span(each, zone)}", "bold")
    return [*lines, *_evidence(each.evidence, term, places), f"{term.style('  fix:', 'green', 'bold')} {each.fix}"]


def _span(each: DeploymentFinding, zone: dt.tzinfo | None) -> str:
    if each.since is None or each.until is None:
        return ""
    first, last = (wording.moment(t, zone).strftime("%Y-%m-%d %H:%M:%S") for t in (each.since, each.until))
    return f", {first} to {last}"


def _evidence(found: Sequence[Evidence], term: Term, places: Places) -> list[str]:
    lines = []
    for each in found[:LINES]:
        place = places.text(each.file, each.line)
        link = places.link(each.file, each.line, place, "dim")
        text = f"  {each.instance} {place}: {each.text}"
        if term.tty and len(text) > term.width:
            text = text[: max(20, term.width - 1)] + term.symbol("…", "~")
        lines.append(text.replace(place, link, 1))
    return lines


def _rooms(found: Diagnosis, term: Term) -> list[str]:
    tally = found.tally
    number = sum(tally.rooms.values())
    said = ", ".join(f"{tally.rooms[outcome]} {outcome}" for outcome in MARKS if tally.rooms.get(outcome))
    lines = prose(term, "rooms:", f"{number} in the logs{': ' if said else ''}{said}", "bold")
    if tally.canaries:
        lines += prose(
            term,
            "  not counted:",
            f"{_count(tally.canaries, 'canary', 'canaries')} that doctor cut short, as a check",
            "dim",
        )
    if tally.broken > tally.traced:
        lines += prose(term, "  note:", f"{tally.traced} of the {tally.broken} broken ones were traced", "dim")
    if tally.unexplained:
        lines += prose(term, "  no cause found for:", _some(tally.unexplained), "bold")
    if tally.answered:
        said = ", ".join(f"{name} {count}" for name, count in tally.answered.items())
        lines += prose(term, "  answered with 200:", f"{said} (requests for tokens; its own warm-up is not counted)")
    return lines


def _remarks(found: Diagnosis, term: Term, places: Places) -> list[str]:
    if not found.remarks:
        return []
    of_one = not found.contradiction  # of several deployments, a line may tell of a death that could not be proven
    lines = [term.style(f"also said ({'effects, or harmless by themselves' if of_one else 'not judged'}):", "bold")]
    for each in found.remarks:
        place = places.text(each.first.file, each.first.line)
        head = f"  {each.code} {each.slug}: {each.instance}, {_count(each.lines, 'line')}"
        lines.append(f"{head}, first {place}: {each.first.text}")
    return [line if not term.tty else fitted(line, term.width) for line in lines]


def _unknowns(found: Diagnosis, term: Term) -> list[str]:
    if not found.unknowns:
        return []
    lines = [term.style("not told by these logs:", "bold")]
    for each in found.unknowns:
        lines += prose(term, "  -", f"{each.what}: {each.enable_with}")
    return lines


def _sources(found: Sequence[LogSource], term: Term, zone: dt.tzinfo | None) -> list[str]:
    head = ("LOG", "KIND", "SPEAKER", "RELEASE", "LEVEL", "FROM", "TO", "LINES")
    rows = [
        (
            each.instance, each.role or each.kind.value, each.speaker or "-", each.release or "-", each.level or "-",
            _time(each.began, zone), _time(each.ended, zone), each.lines,
        )
        for each in found
    ]  # fmt: skip
    lines = table(term, head, rows)
    for each in found:
        if each.said and each.kind is not SourceKind.MIXED:  # listed among the unknowns
            lines += prose(term, f"  {each.instance}:", each.said, "yellow")
    return lines


def _time(t: float | None, zone: dt.tzinfo | None) -> str:
    return "-" if t is None else wording.moment(t, zone).strftime("%m-%d %H:%M:%S")


def _some(rooms: Sequence[int]) -> str:
    more = f" and {len(rooms) - ROOMS} more" if len(rooms) > ROOMS else ""
    return ", ".join(map(str, rooms[:ROOMS])) + more


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def to_json(found: Sequence[JudgedDeployment], term: Term) -> str:
    text = dumped(document(found[0].diagnosis) if len(found) == 1 else document_of_each(found), indent=2)
    return text if term.unicode else ascii_json(text)


def to_jsonl(found: Sequence[JudgedDeployment], term: Term) -> str:
    """One object per part, with its kind in `part`; the verdict comes first, that of each deployment before its parts.

    Of several deployments every part names its own.
    """
    lines: list[dict[str, object]] = []
    for each in found:
        whole = document(each.diagnosis)
        of: dict[str, object] = {"deployment": each.directory} if len(found) > 1 else {}
        told = ("schema", "window", "verdict", "rooms", "clocks", "notes")
        lines.append({"part": "verdict", **of, **{key: whole[key] for key in told}})
        for name, key in PARTS.items():
            parts = whole[key]
            assert isinstance(parts, list)
            lines += [{"part": name, **of, **part} for part in parts]
    text = "\n".join(dumped(line) for line in lines)
    return text if term.unicode else ascii_json(text)


def document_of_each(found: Sequence[JudgedDeployment]) -> dict[str, object]:
    """The same contract for several deployments: their documents, and beside them all parts, each with its own."""
    documents = [{"deployment": each.directory, **document(each.diagnosis)} for each in found]
    verdicts = {each["verdict"] for each in documents}
    whole: dict[str, object] = {
        "schema": SCHEMA,
        "window": documents[0]["window"],
        "verdict": "wrong" if "wrong" in verdicts else "fine" if verdicts == {"fine"} else "unknown",
    }
    tallies = [each.diagnosis.tally for each in found]
    outcomes = sum((Counter(tally.rooms) for tally in tallies), Counter[str]())
    whole["rooms"] = {
        "by_outcome": dict(outcomes), "broken": sum(tally.broken for tally in tallies),
        "traced": sum(tally.traced for tally in tallies),
        "unexplained": [str(room) for tally in tallies for room in tally.unexplained], "answered": {},
        "canaries": sum(tally.canaries for tally in tallies),
    }  # fmt: skip
    for key in (*PARTS.values(), "clocks"):
        whole[key] = [
            {"deployment": each["deployment"], **part} for each in documents for part in cast("list[Parts]", each[key])
        ]
    notes = [f"{each.directory}: {note}" for each in found for note in each.diagnosis.notes]
    verdicts_of_each = [{key: each[key] for key in ("deployment", "verdict", "rooms")} for each in documents]
    return {**whole, "notes": notes, "deployments": verdicts_of_each}


def document(found: Diagnosis) -> dict[str, object]:
    """Contract `pdctl.diagnose/1`: fields are only ever added. Room ids are strings: jq rounds numbers above 2^53."""
    return {
        "schema": SCHEMA,
        "window": _window(found),
        "verdict": "wrong" if found.wrong else "fine" if found.fine else "unknown",
        "deaths": [
            {
                "instance": each.instance, "role": each.role or None, "since": each.since, "at": each.at,
                "time": wording.rfc3339(each.at),
                "code": each.code, "slug": each.slug, "headline": each.headline, "why": each.why,
                "room_ids": [str(room) for room in each.rooms], "running": each.running,
                "back": each.back, "serves": each.serves,
                "evidence": [_line(line) for line in each.evidence], "fix": each.fix,
            }
            for each in found.deaths
        ],
        "findings": [
            {
                "code": each.code, "slug": each.slug, "headline": each.headline, "why": each.why,
                "instance": each.instance or None, "grave": each.grave, "room_ids": [str(room) for room in each.rooms],
                "since": each.since, "until": each.until, "evidence": [_line(line) for line in each.evidence],
                "fix": each.fix,
            }
            for each in found.findings
        ],
        "remarks": [
            {
                "code": each.code, "slug": each.slug, "instance": each.instance, "count": each.lines,
                "first": _line(each.first),
            }
            for each in found.remarks
        ],
        "rooms": {
            "by_outcome": dict(found.tally.rooms), "broken": found.tally.broken, "traced": found.tally.traced,
            "unexplained": [str(room) for room in found.tally.unexplained], "answered": dict(found.tally.answered),
            "canaries": found.tally.canaries,
        },
        "unknowns": [{"what": each.what, "enable_with": each.enable_with} for each in found.unknowns],
        "sources": [
            {
                "instance": each.instance, "kind": each.kind.value, "role": each.role or None,
                "speaker": each.speaker or None, "release": each.release or None, "level": each.level or None,
                "files": list(each.files), "bytes": each.size, "lines": each.lines, "read": each.read,
                "known": each.known, "began": each.began, "ended": each.ended, "said": each.said or None,
            }
            for each in found.sources
        ],
        "clocks": [
            {
                "instance": each.instance, "offset_s": each.offset_s, "uncertainty_s": each.uncertainty_s,
                "why": each.why,
            }
            for each in found.clocks
        ],
        "notes": [*filter(None, (found.contradiction,)), *found.notes],
    }  # fmt: skip


def _window(found: Diagnosis) -> dict[str, object] | None:
    if found.window is None:
        return None
    since, until = (None if abs(each) == float("inf") else each for each in found.window)
    return {"since": since, "until": until, "empty": found.empty}


def _line(line: Evidence) -> dict[str, object]:
    return {"instance": line.instance, "file": line.file, "line": line.line, "text": line.text, "says": line.says}
