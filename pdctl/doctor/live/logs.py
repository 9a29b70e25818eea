"""Causes named in the logs of a run: every code that has a signature, and PD805."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from pdctl.catalogue import book
from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor.bootstrap_ports import endpoint_key
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.catalogue.entry import Entry
    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import SignatureLine

# Codes whose lines describe a moment that may have passed: a worker that was not up yet, a health check during a
# restart. The live checks report the present state with the catalogue's own severity.
PASSED = {
    "PD209": Severity.INFO,
    "PD601": Severity.WARNING,
    "PD602": Severity.INFO,
    "PD603": Severity.INFO,
    "PD604": Severity.WARNING,
}
CLIENT_LEFT = "PD706"  # to an engine the router is the client, and it drops legs of requests that it retries
RETRIED = "PD715"
SET_UP = ("PD2", "PD3")  # codes about configuration: what is configured wrong fails again and again
FEW = 2  # this many lines prove nothing while other requests are answered
OFTEN = 100  # answered requests per line from which on any number of lines proves nothing
# A decode dials the bootstrap server that a request's own fields name, so that anybody who reaches it can cause lines
# of these codes, several per request; the live checks see for themselves whether the deployment is at fault. A code
# belongs here if a decode writes its lines because of bootstrap_host or bootstrap_port alone.
BY_CLIENT = frozenset({"PD205", "PD206"})
OFTEN_BY_CLIENT = 10  # answered requests per line of those codes
SHOWN = 160  # characters of a line in a headline
UNSEEN = Skipped("no line of the logs names it")
ROOMS = Skipped("no single line names it: pdctl trace-room decides it room by room")


def signature(entry: Entry, facts: Facts) -> list[Finding] | Skipped | Unknown:
    """The lines that name the code. None is an answer only for a code that logs decide and that has a signature."""
    named = {endpoint_key(endpoint.url): endpoint.name for endpoint in facts.endpoints}
    found = [
        _finding_of_line(
            entry, line, named.get(endpoint_key(line.about), line.about) if line.about else line.instance, facts.logs
        )
        for line in facts.logs
        if line.code == entry.code
    ]
    if found or (Needs.LOG in entry.needs and entry.code in _signed()):
        return found
    return ROOMS if Needs.LOG in entry.needs else UNSEEN


@lru_cache(maxsize=1)
def _signed() -> frozenset[str]:
    """The codes that some row names as its cause."""
    from pdctl.engines.row_matching import (
        speech,  # late: it compiles all rows; a run that reads logs has done so already
    )

    return frozenset(row.cause for row in speech().rows if row.cause and not row.echo)


def is_of_set_up(code: str) -> bool:
    """Whether the code is about configuration, so its lines are weighed against the requests that were answered."""
    return code.startswith(SET_UP)


def _is_rare(line: SignatureLine, others: Iterable[SignatureLine]) -> bool:
    """Whether they are exceptions among answered requests. What clients can cause is weighed together."""
    if not is_of_set_up(line.code) or not line.answered:
        return False
    if not _by_client(line):
        return line.count <= FEW or line.count * OFTEN <= line.answered
    like = [one for one in others if one.instance == line.instance and _by_client(one)]
    count, answered = sum(one.count for one in like), max(one.answered for one in like)
    return count <= FEW or count * OFTEN_BY_CLIENT <= answered


def _by_client(line: SignatureLine) -> bool:
    return line.code in BY_CLIENT and not line.by_router


def _finding_of_line(entry: Entry, line: SignatureLine, subject: str, others: Iterable[SignatureLine]) -> Finding:
    """The finding about `subject`: the instance that wrote the line, or the worker that a router's line is about."""
    times = f"{line.count} times" if line.count > 1 else "once"
    rare = _is_rare(line, others)
    unsure = _by_client(line) and line.answered > 0  # an error would let any client make doctor fail
    seen = f"seen {times}" + (f" within {line.seconds:.0f} s" if line.count > 1 else "")
    seen += f", first for room {line.room}" if line.room is not None else ""
    answered = (
        f"{line.instance} answered {line.answered} or more requests with 200: these are exceptions" if rare else ""
    )
    found = finding(
        entry.code,
        subject,
        observed=f"{line.text:.{SHOWN}}",
        expected="no such line",
        evidence=tuple(filter(None, (f"{line.place}: {line.text}", seen, answered))),
        severity=Severity.INFO if rare else Severity.WARNING if unsure else PASSED.get(entry.code),
        file=line.place.rpartition(":")[0],
        room=line.room if line.room is not None else "ROOM",
    )
    aborted = entry.code == CLIENT_LEFT and not line.by_router
    said = "an abort from outside, by the client or by the router" if aborted else entry.slug
    lines = f"{line.count} lines that point to" if line.count > 1 else "a line that points to"
    headline = f"the log of {line.instance} has {lines} {said}"
    if subject != line.instance:
        headline += f" of {subject}{_when(line)}"
    fix = (
        f"pdctl rooms {pasteable(str(PurePath(line.place).parent))} shows which were retried" if aborted else found.fix
    )
    fix = f"pdctl trace-room {line.room}" if line.room is not None else fix
    when = (-math.inf, math.inf) if line.at is None else (line.at, line.at + line.seconds)
    return replace(found, headline=headline, fix=fix, seen=when, rooms=line.rooms)


def _when(line: SignatureLine) -> str:
    if line.at is None:
        return ""
    began = _time(line.at)
    return f", from {began} to {_time(line.at + line.seconds)}" if line.seconds >= 1 else f", at {began}"


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def collected(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD805: an instance under examination has no log among those given."""
    if not facts.endpoints:
        return Skipped("no instance was given, so whose logs are missing is not known")
    there = set(facts.logged)
    missing = [endpoint.name for endpoint in facts.endpoints if endpoint.name not in there]
    return [
        finding(
            "PD805", name, observed="no log", expected="a log of every instance", evidence=(f"read: {_read(facts)}",)
        )
        for name in missing
    ]


def _read(facts: Facts) -> str:
    return ", ".join(facts.logged) or "none"


CHECKS = (
    Check("PD805", (Needs.LOG,), collected),
    *(
        Check(entry.code, (Needs.LOG,), partial(signature, entry))
        for entry in book.ENTRIES
        if not entry.unseen and entry.code != "PD805"
    ),
)
