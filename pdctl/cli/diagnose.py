"""`pdctl diagnose`: what happened to a deployment, from its logs alone."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

from pdctl.cli import log_sources
from pdctl.cli.log_sources import LogReading, Scanning, read_stats
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode
from pdctl.logs.window import timezone
from pdctl.render import diagnosis_view as render
from pdctl.render import term
from pdctl.render.term import to_file

if TYPE_CHECKING:
    from pdctl.launch.log_tail import StoppedInstance
    from pdctl.trace.deployment_report import DeploymentFinding, Diagnosis, JudgedDeployment


class DiagnosisForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


Paths = argument(metavar="[SOURCE]...", help="Logs, directories, globs or `-`; none: those of the run.")


def command(
    paths: Annotated[list[str] | None, Paths] = None,
    run: Annotated[str | None, log_sources.Run] = None,
    since: Annotated[str | None, log_sources.Since] = None,
    until: Annotated[str | None, log_sources.Until] = None,
    tz: Annotated[str | None, log_sources.Zone] = None,
    dialects: Annotated[Path | None, log_sources.Dialects] = None,
    verbose: Annotated[bool, log_sources.Verbose] = False,
    output: Annotated[DiagnosisForm, option("--output", "-o", help="Form of the answer.")] = DiagnosisForm.TEXT,
    output_file: Annotated[Path | None, log_sources.OutputFile] = None,
) -> ExitCode:
    """Say what happened to a deployment: who died, when and why, which rooms that took along, what is misconfigured.

    \b
    pdctl diagnose                                  # of the only run alive, or the last to end
    pdctl diagnose logs/
    pdctl diagnose prefill*.log decode.log router.log.gz -o json
    kubectl logs -l app=sglang --prefix --tail=-1 | pdctl diagnose -

    Exit code 0: requests were answered, and nothing wrong was found; 1: a death, a broken room or a misconfiguration;
    4: the logs do not tell.
    """
    sources = log_sources.sources(paths or [], run)
    zone = timezone(tz)
    found = _read(sources, LogReading(since, until, tz, dialects, indexed=False), verbose)
    with to_file(output_file) as stream:
        if output is DiagnosisForm.TEXT:
            render.show_each(found, stream, zone)
        else:
            stream.write(
                render.to_json(found, stream) if output is DiagnosisForm.JSON else render.to_jsonl(found, stream)
            )
    return exit_code(*(each.diagnosis for each in found))


def exit_code(*found: Diagnosis) -> ExitCode:
    """Of several deployments: something is wrong with one of them; or all are fine."""
    if any(each.wrong for each in found):
        return ExitCode.FINDINGS
    return ExitCode.OK if all(each.fine for each in found) else ExitCode.NOT_PROBED


def _read(sources: log_sources.Sources, reading: LogReading, verbose: bool) -> tuple[JudgedDeployment, ...]:
    began, progress = time.monotonic(), Scanning(term.err())
    try:
        library = log_sources.library(log_sources.opened(sources), reading, progress)
        from pdctl.trace.diagnose import diagnose_each

        found = diagnose_each(library)
    finally:
        progress.close()
    if verbose:
        read_stats(library, time.monotonic() - began, term.err())
    return tuple(
        each._replace(
            diagnosis=each.diagnosis._replace(
                findings=(*map(_stopped, sources.stopped), *each.diagnosis.findings),
                lost=sources.lost,
                ended=sources.ended,
                notes=(*each.diagnosis.notes, *filter(None, (sources.ended, sources.unwatched))),
            )
        )
        for each in found
    )


def _stopped(each: StoppedInstance) -> DeploymentFinding:
    """PD604 of an instance that is stopped now: no log can tell, and what its log lacks has this cause."""
    from pdctl.catalogue.book import entry  # imported late: few runs have a stopped process
    from pdctl.trace.deployment_report import DeploymentFinding

    headline = f"{each.name} does not answer: {each.what}"
    why = f"the kernel says so, and no log can (SIGSTOP, Ctrl-Z, a debugger): {each.name} writes nothing meanwhile"
    return DeploymentFinding("PD604", entry("PD604").slug, headline, why, each.name, (), None, None, (), each.fix)
