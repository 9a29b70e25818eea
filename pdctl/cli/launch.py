"""`pdctl launch`: start a topology, wait until it serves, stay with it or leave it to a supervisor."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli.durations import seconds
from pdctl.cli.exits import reraise
from pdctl.launch import assemble, remote
from pdctl.launch.deployment import OnDeath  # noqa: TC001 - Typer evaluates the annotations
from pdctl.launch.events import Event, Kind
from pdctl.launch.prepare import Opened, open_run
from pdctl.launch.relay import PROBE, Follower, Line
from pdctl.launch.state import home
from pdctl.launch.supervisor import Supervisor
from pdctl.launch.targets.local import Local
from pdctl.layout import plan as layout
from pdctl.render import live, plan_document, serving, term
from pdctl.render.live import Progress
from pdctl.topology import document, resolve

if TYPE_CHECKING:
    from pdctl.launch.deployment import Deployment


class Form(str, Enum):
    TEXT = "text"
    JSON = "json"


def command(
    topology: Annotated[str, typer.Argument(metavar="FILE|NAME", help="Topology file or the name of a shipped one.")],
    overlays: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="FILE", help="Overlay merged over the file; repeatable.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="One value, as path=value; repeatable.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it serves; it goes on by itself.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every command and its environment.")] = False,
    name: Annotated[
        str | None, typer.Option(metavar="RUN", help="Name of the run; the topology's name if not given.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Time to serve, such as 90s or 5m.")] = None,
    verify: Annotated[bool, typer.Option(help="Send one request through every prefill and decode pair.")] = True,
    on_death: Annotated[
        OnDeath | None, typer.Option(help="When a process dies; readiness.restart if not given.")
    ] = None,
    progress: Annotated[Progress, typer.Option(help="How the start is shown.")] = Progress.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no logs.")] = False,
    output: Annotated[Form, typer.Option("--output", "-o", help="Form of --dry-run.")] = Form.TEXT,
) -> None:
    """Start a topology and keep it running.

    \b
    pdctl launch 2p1d                                     # two prefills, one decode, one router on this machine
    pdctl launch topologies/2p1d.yaml --set router.port=8100
    pdctl launch 2p1d -d --name blue                      # then: pdctl status blue, logs -f blue, down blue
    pdctl launch 2p1d --dry-run                           # the commands, to paste

    Ctrl-C ends the router first, then decode and prefill; a second one ends everything now.
    """
    written, values = resolve.resolve([resolve.find(each) for each in (topology, *(overlays or []))], sets or [])
    planned = layout.plan_topology(written, target="local")
    for caution in planned.warnings:
        term.err().write(f"warning: {caution.message}")
    deployment = assemble.deployment(written, planned)
    if dry_run:
        _print_commands(deployment, output)
        return
    limit = None if timeout is None else seconds("--timeout", timeout)
    options = assemble.options(written, limit, on_death, verify)
    run_name = name or deployment.name
    target = Local(run_name, os.environ)
    opened = open_run(
        home(os.environ),
        run_name,
        deployment,
        options,
        check=target.check,
        argv=sys.argv,
        detached=detach,
        files=[topology, *(overlays or [])],
        sets=sets or [],
        logs=written.readiness.logs_dir,
    )
    opened.directory.keep("topology.yaml", document.to_yaml(values))
    opened.directory.keep("plan.json", plan_document.to_json(planned))
    shown = Progress.NONE if quiet else progress
    if shown is not Progress.NONE:
        serving.headline(deployment, opened.run.name, opened.directory.logs, term.err())
    if detach:
        _leave_running(opened, shown)
    else:
        _stay(opened, target, shown, follow=not quiet)


def _print_commands(deployment: Deployment, output: Form) -> None:
    if output is Form.JSON:
        term.out().write(serving.dry_run_json(deployment))
    else:
        serving.dry_run(deployment, term.out())


def _stay(opened: Opened, target: Local, progress: Progress, follow: bool) -> None:
    view = live.choose(progress, opened.run.deployment, term.err(), attached=True)
    followers: list[Follower] = []

    def told(line: Line) -> None:
        if not PROBE.search(line.text):  # `pdctl logs` has them too
            view.line(line)

    def emit(event: Event) -> None:
        if event.kind is Kind.ENDED:
            for follower in followers:
                follower.close()  # the last words of the processes go before the last word
        view.event(event)
        if event.kind is Kind.SERVING and not followers:
            serving.banner(opened.run, term.out())
            if follow:
                hint = "the logs follow; Ctrl-C ends the run, and waits for the requests in flight"
                term.err().write(term.err().style(hint, "dim"))
                followers.append(Follower(opened.directory.ends(opened.run), told))
                followers[0].start()

    try:
        outcome = Supervisor(opened.directory, opened.run, target, emit).run()
    finally:
        for follower in followers:
            follower.close()
        with contextlib.suppress(OSError):  # the terminal may be gone; the exit code still tells
            view.close()
    os.close(opened.lock)
    if outcome.signal:
        reraise(outcome.signal)
    raise remote.failure(outcome)


def _leave_running(opened: Opened, progress: Progress) -> None:
    view = live.choose(progress, opened.run.deployment, term.err(), attached=False)
    supervisor = remote.detach(opened.directory, opened.lock)
    try:
        run = remote.await_serving(opened.directory, supervisor, view.event)
    except KeyboardInterrupt:
        supervisor.send_signal(
            signal.SIGTERM
        )  # what was asked for is not wanted any more, and nothing is to be drained
        supervisor.send_signal(signal.SIGINT)
        supervisor.wait()
        view.close()
        reraise(signal.SIGINT)
        raise
    finally:
        view.close()
    serving.banner(run, term.out())
    term.out().write(f"  {shlex.join(['pdctl', 'down', run.name])}")
