"""Every death of an instance (an end nobody ordered), over all its starts, and the reason its last lines give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pdctl.engines import message_details, numerals
from pdctl.engines.base import Level, Sign
from pdctl.logs.window import UNLIMITED
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.shell_quoting import pasteable
from pdctl.trace.case import (
    CRASH,
    ENDS,
    MISMATCH,
    MISSED,
    TRACEBACK,
    UNABLE,
    DeathProof,
    crash_lines,
    deaths_in,
    is_crash,
    names_reason_of,
    proof_of_end,
    unordered_ends,
    what_it_shows,
)
from pdctl.trace.causes.dead_processes import UNKNOWN_WHEN, fix_of_death, launchers_line, unknown_of_death
from pdctl.trace.causes.pairing import COMPARED
from pdctl.trace.deployment_report import Death
from pdctl.trace.joins import requests_taken
from pdctl.trace.observed_deployment import mixed_logs
from pdctl.trace.room import Evidence
from pdctl.trace.room_events import counts_as_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.engines.base import Row
    from pdctl.logs.event import Event, Place
    from pdctl.logs.library import Library, NearLine
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance
    from pdctl.trace.room import Room

GONE = {"prefill": "PD705", "decode": "PD704", "router": "PD720"}  # by role: it ended, and no line says why
SIGNS_OF_DEATH = frozenset(
    {
        Sign.DIED, Sign.REHEARSED, Sign.ORDERED_TO_END, Sign.RUNNING, Sign.BOOTSTRAP_MISSED, Sign.BOOTSTRAP_REFUSED,
        *MISSED,
    }
)  # fmt: skip
TELLING = frozenset({CRASH}) | MISMATCH | UNABLE  # codes whose lines give the reason of a death
NEAR = 10.0  # seconds before a death in which a batch line still tells how many requests died with it
# The last line of a Python traceback: `ValueError: …`, `torch.OutOfMemoryError: …`, `AssertionError`.
RAISED = compile_late(r"^(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Failure)\b(?:: .*)?$")
FROM = "The above exception was the direct cause of the following exception:"
SAID = 240  # characters of a line that are kept
LAST_SECONDS, LAST_BYTES = 10.0, 1 << 15  # before its end, in which a process may write why it leaves
QUIET = (Level.DEBUG, Level.INFO)


class ProvenDeath(NamedTuple):
    """reason: the exception its traceback ends with, if found. mixed: its log holds lines of several processes.

    unable: the line that says why it could not start, before it left with an exit code.
    """

    death: DeathProof
    reason: Evidence | None
    mixed: bool = False
    unable: Event | None = None


def shows_death(row: Row) -> bool:
    """Whether the row can show that an instance is gone, or why: these rows suffice to judge deaths."""
    return not SIGNS_OF_DEATH.isdisjoint(row.proves) or row.cause in TELLING


def proven_deaths(library: Library, deployment: ObservedDeployment, lines: Sequence[Event]) -> Iterator[ProvenDeath]:
    """Each instance's last death and every crash of an earlier start. lines: of rows that `shows_death` accepts."""
    last, several = deaths_in(deployment, lines), mixed_logs(library)
    for name, one in deployment.instances.items():
        seen = _seen_by_launcher(one, lines)
        known = {event.place for death in seen for event in death.evidence}
        earlier = [death for death in _earlier(one, lines, last.get(name)) if known.isdisjoint(_places(death))]
        for death in (*earlier, *(seen or ([last[name]] if name in last else []))):
            yield ProvenDeath(death, _reason(library, death), name in several, _unable(death, lines))


def _seen_by_launcher(one: ObservedInstance, lines: Sequence[Event]) -> list[DeathProof]:
    """Every death that the instance's launcher logged, and nobody ordered."""
    proofs = [
        proof_of_end(one, end, lines) for end in unordered_ends(one, [event for event in lines if event.proves(*ENDS)])
    ]
    return [death for death in proofs if death is not None]


def _unable(death: DeathProof, lines: Iterable[Event]) -> Event | None:
    seen = launchers_line(death)
    if seen is None or "code" not in seen.values:
        return None
    first = max((start for start in death.instance.started if start <= death.at), default=-math.inf)
    of_start = (
        event
        for event in lines
        if event.row.cause in UNABLE and event.place.file == seen.place.file and event.instance == seen.instance
        if seen.place.offset - TRACEBACK < event.place.offset < seen.place.offset
        if event.t is None or event.t >= first
    )
    return next(of_start, None)


def fills_of_line(event: Event, instance: ObservedInstance | None) -> dict[str, str]:
    """Values for the entry of the line's code; where the line names no address, that of its own process."""
    fills = {"instance": event.instance, "prefill": event.instance, "observed": event.text.strip()[:120]}
    if instance is not None and instance.port is not None:
        at_host = {"PD220": instance.host, "PD225": f"{instance.host}:{instance.port}"} if instance.host else {}
        fills["observed"] = ({"PD218": str(instance.port)} | at_host).get(event.row.cause, fills["observed"])
    fills["expected"] = "0.0.0.0, or the IP address of an interface"
    return fills | {name: event.values[name] for name in ("observed", "fix") if event.values.get(name)}


def _fix_in_topology(unable: Event) -> str:
    """What the user of `pdctl launch`, which writes the router's command line, can change about a router's address."""
    if unable.row.cause == "PD218":
        return "give pdctl launch a `router.port` that is free: --set router.port=PORT"
    if "denied" in unable.text:
        return "give pdctl launch a `router.port` of 1024 or more, such as --set router.port=8000"
    which = "an IP address that `ip -br address` lists on that machine"
    return f"give pdctl launch {which} as `router.host`, such as --set router.host=127.0.0.1"


def _places(death: DeathProof) -> Iterator[Place]:
    return (event.place for event in death.evidence)


def _earlier(one: ObservedInstance, lines: Sequence[Event], last: DeathProof | None) -> list[DeathProof]:
    """Crashes followed by a later start of the same instance, each by its first line."""
    found: list[DeathProof] = []
    crashes = crash_lines(event for event in lines if event.instance == one.name and not event.row.echo)
    seen: set[int] = set()
    for event in crashes:
        if event.t is None:
            continue
        later = [start for start in one.started if start > event.t]
        if not later or len(later) in seen:
            continue  # a crash of the last start, or not the first line of an earlier one
        seen.add(len(later))
        if last is not None and abs(last.at - event.t) < 1.0:
            continue
        reasons = [line for line in lines if names_reason_of(line, event)]
        found.append(DeathProof(one, event.t, reasons[0] if reasons else None, (*reasons[:1], event), event.t))
    return found


def reported_death(each: ProvenDeath, broken: Sequence[Room], running: int | None) -> Death:
    """The death as reported, in the words of its catalogue entry, or of the rooms it broke where those say more."""
    from pdctl.catalogue.book import entry  # imported late: most deployments serve
    from pdctl.catalogue.entry import fill, fill_fix

    death, one = each.death, each.death.instance
    code = _code(death) if each.unable is None else each.unable.row.cause
    known = entry(code)
    rooms = tuple(room.room for room in broken)
    retried = sum(1 for room in broken if room.answered_as is not None)
    why = _mixed_log_note(each)
    fills = {
        "instance": one.name, "decode": one.name, "prefill": one.name, "router": one.name,
        "room": str(rooms[0]) if rooms else "its room",
        "observed": each.reason.text if each.reason else why, "expected": "the same on both sides",
        "other": "its peers",        "model": "the model",
    }  # fmt: skip
    differing = COMPARED.get(code)
    if differing is not None and death.of is not None:
        values = death.of.values
        fills |= {"observed": values.get(differing[0], why), "expected": values.get(differing[1], "another")}
        fills |= {"prefill": "the prefill", "decode": one.name, "instance": "the prefill", "other": one.name}
    if each.unable is not None:
        fills = fills_of_line(each.unable, one)
    evidence = [as_evidence(event, what_it_shows(event, death)) for event in death.evidence]
    if each.reason is not None and each.reason.line not in {line.line for line in evidence}:
        evidence.append(each.reason)
    fix = fill_fix(known.fix, fills)
    files = message_details.files_wanted(each.reason.text) if each.reason is not None else None
    if code in GONE.values() and files is not None:
        where = f"as root, in the shell that starts {pasteable(one.name)}; or LimitNOFILE= of its unit"
        fix = f"ulimit -n {files}   # {where}"
    elif code in GONE.values():
        fix = fix_of_death(death)
    elif each.unable is not None and one.role == "router":
        fix = _fix_in_topology(each.unable)
    elif differing is not None:
        fix = f"start {pasteable(one.name)} and its peers with the same {differing[2]}"
    elif code == CRASH and death.evidence:
        fix = fix.replace("FILE", pasteable(death.evidence[0].place.on_disk))
    headline = fill(known.headline, fills)
    if code in GONE.values() and not rooms:
        headline = f"{one.name} died; no room is known to have broken of it"
    elif code in GONE.values():
        headline = _as_rooms_say(one.name, headline, broken)
    return Death(
        one.name, one.role, death.since, death.at, code, known.slug, headline, why, rooms, running,
        tuple(evidence), fix, unknown_of_death(death) if code in GONE.values() else (), retried,
    )  # fmt: skip


def next_start(death: DeathProof, gone: Iterable[ProvenDeath]) -> float | None:
    """When the instance started again after this death, unless it did so only after a later one."""
    one = death.instance
    again = min((start for start in one.started if start > death.at), default=None)
    later = [each.death.at for each in gone if each.death.instance.name == one.name and each.death.at > death.at]
    return again if again is not None and again <= min(later, default=again) else None


def _as_rooms_say(name: str, headline: str, broken: Sequence[Room]) -> str:
    """The sentence of its rooms, which tells whether it died before it got them; of both kinds one that covers both."""
    said = {room.cause.headline for room in broken if room.cause is not None and room.cause.code in GONE.values()}
    if len(said) > 1 and any(headline.endswith(UNKNOWN_WHEN) for headline in said):
        return f"{name} died before its rooms were over"
    if len(said) > 1:
        return f"{name} died while it had rooms, and before it got others"
    return said.pop() if said else headline


def _code(death: DeathProof) -> str:
    if death.of is not None and death.of.proves(Sign.ROOM_USED_UP):
        return "PD707"
    if death.of is not None and death.of.row.cause:
        return death.of.row.cause
    if any(is_crash(event) for event in death.evidence):
        return CRASH
    return GONE.get(death.instance.role, CRASH)


def codes_of(death: DeathProof) -> frozenset[str]:
    """Codes that the cause of a room broken by this death can have."""
    return frozenset({_code(death), CRASH, GONE.get(death.instance.role, CRASH)})


def _mixed_log_note(each: ProvenDeath) -> str:
    """The description; for a log of several processes, with a note that it was one of them."""
    told = _describe_death(each)
    return f"one of the processes whose lines alternate in it: {told}" if each.mixed else told


def _describe_death(each: ProvenDeath) -> str:
    death, name = each.death, each.death.instance.name
    if death.of is not None and death.of.proves(Sign.ROOM_USED_UP):
        return f"its scheduler looked for a room that was used up: {death.of.text.strip()[:SAID]}; two requests had it"
    if death.of is not None:
        return f"it crashed on: {death.of.text.strip()[:SAID]}"
    crash = next((event for event in death.evidence if is_crash(event)), None)
    if each.reason is not None and crash is not None:
        return f"its scheduler crashed: {each.reason.text}"
    if crash is not None and crash.proves(Sign.ENDED_ITSELF):
        return f"it ended itself: {crash.values['reason'][:SAID]}"
    if crash is not None:
        return f"it crashed, and no line says of what: {crash.text.strip()[:SAID]}"
    first = death.evidence[0] if death.evidence else None
    said = each.unable.text.strip()[:SAID] if each.unable is not None else each.reason.text if each.reason else ""
    if said and first is not None:
        return f"it left with exit code {first.values['code']}: {said}"
    if first is not None and first.proves(Sign.REHEARSED, Sign.DIED):
        return f"{first.text.strip()[:SAID]}"
    return (
        f"the log of {name} stops without a word, and others found nobody there: killed, OOM-killed, or its host died"
    )


def _reason(library: Library, death: DeathProof) -> Evidence | None:
    """The exception with which the traceback after the crash line ends.

    Of an exception raised `from` another, the later one counts: its author wrote it to explain the first. One raised
    while another was being handled is mostly an accident of the handling, so there the first one counts.
    """
    crash = next((event for event in death.evidence if is_crash(event) and not event.row.echo), None)
    if crash is None:
        return _last_error(library, death)
    found: Evidence | None = None
    chained = True
    for line in library.behind(crash, TRACEBACK):
        text = line.text.strip()
        if line.stamped:
            break
        if chained and RAISED.match(text):
            found = Evidence(crash.instance, crash.place.path, line.place.line, text[:SAID], "what it crashed on")
            chained = False
        chained = chained or text == FROM
    return found


def _last_error(library: Library, death: DeathProof) -> Evidence | None:
    """The last line, before it left with an exit code, that is not one of normal operation.

    Lines of its last seconds count, and the exception that Python printed last of all, without a time, however long
    nothing was printed before: imports take minutes on a busy machine.
    """
    seen = launchers_line(death)
    if seen is None or "code" not in seen.values or seen.t is None:
        return None
    found: NearLine | None = None
    for line in library.ahead(seen, LAST_BYTES, seen.t - LAST_SECONDS):
        said = library.speech.match(line.text.encode())
        if said is not None and Sign.STARTED in said.row.proves:
            found = None
        elif line.text.strip() and (said is None or said.row.level not in QUIET or said.row.cause):
            found = line
    if found is None:
        *_, last = (None, *library.ahead(seen, LAST_BYTES, -math.inf))
        if last is not None and not last.stamped and RAISED.match(last.text.strip()):
            found = last
    if found is None:
        return None
    place, text = found.place, found.text.strip()[:SAID]
    return Evidence(seen.instance, place.path, place.line, text, "what it said before it left")


def as_evidence(event: Event, says: str) -> Evidence:
    return Evidence(event.instance, event.place.path, event.place.line, event.text.strip()[:SAID], says)


def requests_running(death: DeathProof, lines: Iterable[Event], library: Library) -> int | None:
    """Requests that its last batch line before the death counts and that no later line ends; None without such a line.

    Where an engine does not log each request, an answer may be that of any request: then it counts as an end.
    """
    one, last = death.instance, None
    for event in lines:
        near = event.t is not None and death.since - NEAR <= event.t <= death.since
        if near and event.instance == one.name and event.proves(Sign.RUNNING):
            last = event
    counted = numerals.whole(last.values.get("running")) if last is not None else None
    if last is None or last.t is None or not counted:
        return counted
    around = library.context(last.t, death.since, UNLIMITED)
    own = [event for event in around if event.instance == one.name]
    later = own[next((at + 1 for at, event in enumerate(own) if event.place == last.place), len(own)) :]
    came = {event.rid for event in later if event.proves(Sign.REQUEST_ARRIVED)}
    ended = {event.rid for event in later if event.proves(Sign.REQUEST_FINISHED, Sign.REQUEST_CUT)} - came
    answered = sum(map(counts_as_answer, later)) - sum(map(requests_taken, later))
    return max(0, counted - max(len(ended), 0 if one.logs_every_request else answered))
