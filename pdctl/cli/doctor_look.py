"""What `pdctl doctor` does once it knows what to look at: one report, a command for elsewhere, or changes only."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - NamedTuple's annotations
from typing import TYPE_CHECKING, NamedTuple

from pdctl.cli import doctor_request
from pdctl.cli.options import key_of, seconds
from pdctl.doctor import check_run, selection
from pdctl.doctor import request as asking
from pdctl.doctor.facts import Depth
from pdctl.doctor.gather import gather
from pdctl.errors import ExitCode, UsageError
from pdctl.render import term
from pdctl.render.findings.report_forms import ReportForm, write
from pdctl.render.findings.watching import Looking
from pdctl.render.term import to_file

if TYPE_CHECKING:
    from pdctl.cli.doctor_request import Subject, Words
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Report
    from pdctl.doctor.selection import Selection


class Asked(NamedTuple):
    """How it is looked at, as typed: times, where the metrics are, the variable with the key."""

    timeout: str
    canary_timeout: str
    router_metrics: str
    key_env: str
    extras: bool


class Shown(NamedTuple):
    """What becomes of the report."""

    form: ReportForm
    file: Path | None
    verbose: bool
    bundle: Path | None
    reached: str | None


def subject(words: Words, asked: Asked) -> Subject:
    """UsageError for words that cannot be."""
    found = doctor_request.subject(words)
    request = replace(
        found.request,
        router_metrics=asking.url(asked.router_metrics) if asked.router_metrics else "",
        key=key_of(asked.key_env) or found.request.key,
        extras=asked.extras,
        deadline=seconds("--timeout", asked.timeout),
        canary_deadline=seconds("--canary-timeout", asked.canary_timeout),
    )
    return found._replace(request=request)


def once(found: Subject, chosen: Selection, shown: Shown) -> ExitCode:
    chosen = replace(chosen, suppressions=found.suppressions)
    facts, report = look(found, chosen)
    if shown.reached is not None:
        from pdctl.cli.doctor_elsewhere import judged  # late: rarely wanted

        report = judged(facts, report, shown.reached, chosen)
    if shown.bundle is not None:
        from pdctl.cli.doctor_bundle import pack  # late, as above

        pack(shown.bundle, found, facts, report, term.err())
    with to_file(shown.file) as stream:
        write(shown.form, report, stream, shown.verbose, chosen.fail_on)
    return check_run.exit_code(report, chosen.fail_on)


def look(found: Subject, chosen: Selection) -> tuple[Facts, Report]:
    """One look at everything the chosen checks need, and what they conclude."""
    progress = Looking(term.err())
    began = time.monotonic()
    try:
        request = replace(found.request, progress=progress)
        facts = gather(request, check_run.needed(chosen, request.depth))
    finally:
        progress.close()
    return facts, check_run.run(facts, chosen, title=found.title, seconds=time.monotonic() - began)


def print_command(found: Subject, shown: Shown) -> None:
    from pdctl.cli.doctor_elsewhere import command  # late: rarely wanted

    facts, _ = look(found, selection.EVERYTHING)
    with to_file(shown.file) as stream:
        stream.write(command(facts))


def watch(found: Subject, chosen: Selection, every: str, form: ReportForm) -> None:
    """Until the signal. One look follows the other by `every`, however long a look takes."""
    from pdctl.doctor import finding as changing
    from pdctl.render.findings import watching

    interval = seconds("--watch", every)
    if found.request.depth is Depth.STATIC:  # a manifest, and no server named
        raise UsageError("there is nothing to watch in what is written alone", "add --router URL")
    chosen = replace(chosen, suppressions=found.suppressions)
    watched = changing.begin()
    stream = term.out()
    while True:
        _, report = look(found, chosen)
        watched = changing.advance(watched, report, time.monotonic())
        if form is ReportForm.TEXT:
            watching.show(watched, stream)
        elif lines := watching.to_lines(watched):
            stream.write(lines)
        stream.stream.flush()
        time.sleep(interval)
