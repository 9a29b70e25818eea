"""`pdctl launch`: start a topology, wait until it serves, stay with it or leave it to a supervisor."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pdctl.cli.exits import leave_unheard, reraise
from pdctl.cli.options import seconds
from pdctl.launch import deployment_plan, remote
from pdctl.launch.deployment import OnDeath  # noqa: TC001 - Typer evaluates the annotations
from pdctl.launch.run_opening import Opened, open_run
from pdctl.launch.state import home
from pdctl.launch.supervisor import Supervisor
from pdctl.launch.targets.local import Local
from pdctl.render import launch_view, plan_document, term
from pdctl.render.foreground import Foreground, LaunchProgress, choose
from pdctl.topology import export, resolve

if TYPE_CHECKING:
    from pdctl.launch.deployment import Deployment, LaunchOptions
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


class DryRunForm(str, Enum):
    TEXT = "text"
    JSON = "json"


Name = typer.Argument(metavar="FILE|NAME", help="Topology file or the name of a shipped one.")
Overlay = typer.Option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
Setting = typer.Option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
Secret = typer.Option(
    "--deployment-secret/--no-deployment-secret", help="Whether pdctl's processes authenticate each other; default on."
)
Detach = typer.Option("--detach", "-d", help="Return once it serves; it goes on by itself.")
Run = typer.Option("--name", metavar="RUN", help="Name of the run; the topology's name if not given.")


class LaunchPlace(str, Enum):
    LOCAL = "local"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class WrittenSource(NamedTuple):
    """Where the topology came from, and what it says."""

    files: list[str]
    sets: list[str]
    topology: Topology
    text: str


def command(
    topology: Annotated[str, Name],
    overlays: Annotated[list[str] | None, Overlay] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    detach: Annotated[bool, Detach] = False,
    secret: Annotated[bool | None, Secret] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every command and its environment.")] = False,
    name: Annotated[str | None, Run] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Time to serve, such as 90s or 5m.")] = None,
    verify: Annotated[bool, typer.Option(help="Send one request through every prefill and decode pair.")] = True,
    doctor: Annotated[bool, typer.Option(help="Let doctor judge the topology before anything starts.")] = True,
    on_death: Annotated[OnDeath | None, typer.Option(help="If a process dies; default readiness.restart.")] = None,
    progress: Annotated[LaunchProgress, typer.Option(help="How the start is shown.")] = LaunchProgress.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no logs.")] = False,
    output: Annotated[DryRunForm, typer.Option("--output", "-o", help="Form of --dry-run.")] = DryRunForm.TEXT,
    place: Annotated[LaunchPlace, typer.Option("--target", "-t", help="Where it runs.")] = LaunchPlace.LOCAL,
    queue: Annotated[str, typer.Option("--queue-timeout", metavar="TIME", help="Time a job may wait.")] = "1h",
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
    if secret is not None:
        sets = [*(sets or []), f"security.deployment-secret={str(secret).lower()}"]
    written = _read([topology, *(overlays or [])], sets or [])
    if place is LaunchPlace.KUBERNETES:
        from pdctl.cli import launch_kubernetes  # late: a run of this machine asks no cluster

        until = None if timeout is None else seconds("--timeout", timeout)
        launch_kubernetes.launch(written.topology, name, until, dry_run, doctor)
        return
    plan = _plan(written.topology, place)
    for caution in plan.warnings:
        term.err().write(f"warning: {caution.message}")
    deployment = deployment_plan.deployment(written.topology, plan)
    if dry_run:
        _print_commands(written.topology, plan, name or deployment.name, place, output)
        return
    if doctor and not deployment.rehearsal:
        from pdctl.cli import rollout  # late: --dry-run and --no-doctor need no checks

        rollout.check(written.topology, plan, term.err())
    limit = None if timeout is None else seconds("--timeout", timeout)
    options = deployment_plan.options(written.topology, limit, on_death, verify)
    shown = LaunchProgress.NONE if quiet else progress
    if place is LaunchPlace.SLURM:
        from pdctl.cli import launch_slurm  # late: a run of this machine asks no cluster

        patience = seconds("--queue-timeout", queue)
        wish = launch_slurm.Wish(name or deployment.name, written, options, detach, shown, not quiet, patience)
        launch_slurm.launch(plan, wish)
        return
    target = Local(name or deployment.name, os.environ)
    opened = _open(written, deployment, options, name or deployment.name, target, detach)
    opened.directory.keep("plan.json", plan_document.to_json(plan))
    if shown is not LaunchProgress.NONE:
        launch_view.headline(deployment, opened.run.name, opened.directory.logs, term.err())
    if detach:
        _leave_running(opened, shown)
    else:
        _stay(opened, target, shown, follow=not quiet)


def _read(files: list[str], sets: list[str]) -> WrittenSource:
    topology, values = resolve.resolve([resolve.find(each) for each in files], sets)
    return WrittenSource(files, sets, topology, export.to_yaml(values))


def _open(
    written: WrittenSource, deployment: Deployment, options: LaunchOptions, name: str, target: Local, detach: bool
) -> Opened:
    opened = open_run(
        home(os.environ),
        name,
        deployment,
        options,
        check=target.check,
        argv=sys.argv,
        detached=detach,
        files=written.files,
        sets=written.sets,
        logs=written.topology.readiness.logs_dir,
        secret=written.topology.security.deployment_secret,
    )
    opened.directory.keep("topology.yaml", written.text)
    return opened


def _plan(topology: Topology, place: LaunchPlace) -> Plan:
    if place is LaunchPlace.LOCAL:
        return deployment_plan.plan_here(topology)
    from pdctl.launch.slurm import host_placement  # late: a run of this machine asks no cluster

    return host_placement.planned(topology)


def _print_commands(topology: Topology, plan: Plan, name: str, place: LaunchPlace, output: DryRunForm) -> None:
    if place is LaunchPlace.SLURM:
        from pdctl.cli import launch_slurm  # late, as above

        launch_slurm.dry_run(topology, plan, name, output is DryRunForm.JSON)
        return
    deployment = deployment_plan.deployment(topology, plan)
    if output is DryRunForm.JSON:
        term.out().write(launch_view.dry_run_json(deployment))
    else:
        launch_view.dry_run(deployment, term.out())


def _stay(opened: Opened, target: Local, progress: LaunchProgress, follow: bool) -> None:
    view = choose(progress, opened.run.deployment, term.err(), attached=True)
    shown = Foreground(opened.directory, opened.run, view, follow)
    try:
        outcome = Supervisor(opened.directory, opened.run, target, shown.event).run()
    finally:
        heard = shown.close()
    os.close(opened.lock)
    if not heard:
        leave_unheard(outcome.code, outcome.signal)
    if outcome.signal:
        reraise(outcome.signal)
    raise remote.failure(outcome)


def _leave_running(opened: Opened, progress: LaunchProgress) -> None:
    view = choose(progress, opened.run.deployment, term.err(), attached=False)
    supervisor = remote.detach(opened.directory, opened.lock)
    try:
        run = remote.await_serving(opened.directory, lambda: supervisor.poll() is not None, view.event)
    except KeyboardInterrupt:
        # What was asked for is not wanted any more; the second signal says that nothing is to be drained.
        supervisor.send_signal(signal.SIGTERM)
        supervisor.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(timeout=remote.MARGIN)
        view.close()
        reraise(signal.SIGINT)
        raise
    finally:
        view.close()
    remote.release(supervisor)
    launch_view.banner(run, term.out())
    term.out().write(f"  {shlex.join(['pdctl', 'down', run.name])}")
