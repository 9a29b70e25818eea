"""`pdctl launch`: start a topology, wait until it serves, stay with it or leave it to a supervisor."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl.cli.exits import leave_unheard, reraise
from pdctl.cli.parameters import argument, option
from pdctl.errors import LaunchError, UsageError
from pdctl.launch import remote
from pdctl.launch.deployment import OnDeath
from pdctl.launch.targets import LaunchPlace, prepare
from pdctl.launch.targets.target import LaunchOrder
from pdctl.render import run_view, term
from pdctl.render.foreground import LaunchDisplay, LaunchProgress
from pdctl.topology import export, resolve
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


class DryRunForm(str, Enum):
    TEXT = "text"
    JSON = "json"


Name = argument(metavar="FILE|NAME", help="Topology file or the name of a shipped one.")
Overlay = option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
Setting = option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
Secret = option(
    "--deployment-secret/--no-deployment-secret", help="Whether pdctl's processes authenticate each other; default on."
)
Detach = option("--detach", "-d", help="Return once it serves; it goes on by itself.")
Death = option(metavar="|".join(OnDeath), help="What restarts if a process dies; default: readiness.restart.")
Run = option("--name", metavar="RUN", help="Name of the run; the topology's name if not given.")


def command(
    topology: Annotated[str, Name],
    overlays: Annotated[list[str] | None, Overlay] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    detach: Annotated[bool, Detach] = False,
    secret: Annotated[bool | None, Secret] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Print every command and its environment.")] = False,
    name: Annotated[str | None, Run] = None,
    timeout: Annotated[str | None, option(metavar="TIME", help="Time to serve, such as 90s or 5m.")] = None,
    verify: Annotated[bool, option(help="Send one request through every prefill and decode pair.")] = True,
    doctor: Annotated[bool, option(help="Let doctor judge the topology before anything starts.")] = True,
    on_death: Annotated[str | None, Death] = None,
    progress: Annotated[LaunchProgress, option(help="How the start is shown.")] = LaunchProgress.AUTO,
    quiet: Annotated[bool, option("--quiet", "-q", help="No progress and no logs.")] = False,
    output: Annotated[DryRunForm, option("--output", "-o", help="Form of --dry-run.")] = DryRunForm.TEXT,
    place: Annotated[LaunchPlace, option("--target", "-t", help="Where it runs.")] = LaunchPlace.LOCAL,
    queue: Annotated[str, option("--queue-timeout", metavar="TIME", help="Time a job may wait.")] = "1h",
) -> None:
    """Start a topology and keep it running.

    \b
    pdctl launch 2p1d                                     # two prefills, one decode, one router on this machine
    pdctl launch topologies/2p1d.yaml --set router.port=8100
    pdctl launch 2p1d -d --name blue                      # then: pdctl status blue, logs -f blue, down blue
    pdctl launch 2p1d --dry-run                           # the commands, to paste
    pdctl launch wide.yaml -t slurm -d                    # as one batch job (docs/slurm.md)
    pdctl launch wide.yaml -t kubernetes                  # through your kubectl (docs/kubernetes.md)

    Ctrl-C ends the router first, then decode and prefill; a second one ends everything now.
    """
    if output is not DryRunForm.TEXT and not dry_run:
        raise UsageError(f"-o {output.value} is a form of --dry-run", "add --dry-run, or leave it out")
    if secret is not None:
        sets = [*(sets or []), f"security.deployment-secret={str(secret).lower()}"]
    files = [topology, *(overlays or [])]
    resolved = resolve.resolve([resolve.topology_file(each) for each in files], sets or [])
    order = LaunchOrder(
        topology=resolved.topology,
        text=export.to_yaml(resolved.values),
        files=files,
        sets=sets or [],
        argv=sys.argv,
        name=name,
        detached=detach,
        timeout=None if timeout is None else flag_seconds("--timeout", timeout),
        on_death=_policy(on_death),
        verify=verify,
        patience=flag_seconds("--queue-timeout", queue),
    )
    target = prepare(place, order)
    for caution in target.cautions:
        term.err().write(f"warning: {caution.message}")
    if dry_run:
        found = target.dry_run()
        run_view.dry_run(found, output is DryRunForm.JSON, term.out())
        for each in found.lacking:
            term.err().write(f"warning: these commands do not start here: {each.message}\n  fix: {each.fix}")
        return
    if doctor and not target.rehearsal:
        _ask_doctor(target.topology, target.plan)
    display = LaunchDisplay(LaunchProgress.NONE if quiet else progress, attached=not detach, follow=not quiet)
    try:
        outcome = target.launch(display)
    finally:
        heard = display.close()
    if outcome is None:
        return
    if not heard:
        leave_unheard(outcome.code, outcome.signal)
    if outcome.signal:
        reraise(outcome.signal)
    raise remote.failure(outcome)


def _policy(given: str | None) -> OnDeath | None:
    """Parse --on-death. Typer's own choice would refuse the former values. Raise UsageError if unknown."""
    try:
        return OnDeath(given) if given is not None else None
    except ValueError:
        fix = f"choose one of {', '.join(OnDeath)}"
        raise UsageError(f"--on-death `{given}`: there is no such choice", fix) from None


def _ask_doctor(topology: Topology, plan: Plan) -> None:
    """Check the topology and plan with doctor, offline. Print warnings in one line each.

    Print every error in full, then raise LaunchError.
    """
    from pdctl.doctor import check_run, selection  # imported late: --dry-run and --no-doctor do not need it
    from pdctl.doctor.check import Depth
    from pdctl.doctor.gather import gather
    from pdctl.doctor.request import Request
    from pdctl.render.findings import report_text

    chosen = selection.Selection(suppressions=selection.accepted(topology))
    report = check_run.run(gather(Request(depth=Depth.STATIC, topology=topology, plan=plan)), chosen)
    errors = selection.failing(report, chosen.fail_on)
    for found in errors:
        report_text.finding(found, term.err())
    if errors:
        codes = ", ".join(dict.fromkeys(found.code for found in errors))
        message = f"doctor found {codes} in {topology.name} before anything was started"
        accept = "accept it with `doctor: ignore:` in the topology"
        raise LaunchError(message, f"mend it, {accept}, or start anyway with --no-doctor (pdctl explain {codes})")
    for found in report.findings:
        if found.severity.value == "warning" and not found.suppressed:
            term.err().write(f"warning: {found.code} {found.headline} (pdctl explain {found.code})")
