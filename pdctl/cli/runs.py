"""`pdctl status`, `pdctl ls` and `pdctl down`: the runs of this machine, how they are, and their end."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

from pdctl.cli import log_sources
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, NotFoundError
from pdctl.launch import clusters, launched
from pdctl.launch.run_choice import load_all, runs_of_others
from pdctl.launch.run_directory import home
from pdctl.launch.run_record import State
from pdctl.render import run_view, term
from pdctl.units import flag_seconds


class RunForm(str, Enum):
    TABLE = "table"
    JSON = "json"


def status(
    run: Annotated[str | None, argument(metavar="[RUN]", help="Name of the run; not needed for a single one.")] = None,
    output: Annotated[RunForm, option("--output", "-o", help="Form of the answer.")] = RunForm.TABLE,
    wait: Annotated[bool, option("--wait", help="Wait until everything is ready.")] = False,
    timeout: Annotated[str, option(metavar="TIME", help="How long to wait.")] = "5m",
) -> ExitCode:
    """Show the state of a run, instance by instance. Exit code 8: something is missing.

    \b
    pdctl status
    pdctl status blue -o json
    pdctl status blue --wait --timeout 2m
    """
    limit = flag_seconds("--timeout", timeout)
    found = launched.find_launched(home(os.environ), run, (State.FAILED, State.STALE))
    if wait:
        health = found.await_ready(limit, lambda missing: run_view.cluster_waiting(missing, term.err()))
    else:
        health = found.health()
    if run is None:
        log_sources.tell_choice(found)
    if output is RunForm.JSON:
        term.out().write(run_view.status_json(health))
    else:
        run_view.status(health, term.out())
    return ExitCode.OK if health.ready else ExitCode.NOT_READY


def ls(
    output: Annotated[RunForm, option("--output", "-o", help="Form of the answer.")] = RunForm.TABLE,
) -> None:
    """List runs, the latest first: those that are over too.

    \b
    pdctl ls
    pdctl ls -o json
    """
    root = home(os.environ)
    found, unreadable = load_all(root)
    elsewhere = clusters.load_all(root)
    if output is RunForm.JSON:
        term.out().write(run_view.runs_json(found, unreadable, [each._asdict() for each in elsewhere]))
    else:
        run_view.runs(found, term.out())
        for each in elsewhere:
            term.out().write(f"{each.name}: in Kubernetes ({each.place}), {each.url}; pdctl status {each.name}")
        if not (found or elsewhere):
            if not unreadable:
                term.err().write("no run was ever launched here")
            for sentence in runs_of_others():
                term.err().write(f"note: {sentence}")
        for sentence in unreadable:
            term.err().write(f"warning: {sentence}")


def down(
    run: Annotated[str | None, argument(metavar="[RUN]", help="Name of the run; not needed for a single one.")] = None,
    force: Annotated[bool, option("--force", help="Do not let requests finish: end everything now.")] = False,
    timeout: Annotated[str, option(metavar="TIME", help="How long to wait for it to end.")] = "60s",
) -> None:
    """Stop a run and everything it started. Doing it twice is fine.

    \b
    pdctl down
    pdctl down blue --force
    """
    limit = flag_seconds("--timeout", timeout)
    try:
        found = launched.find_launched(home(os.environ), run, (State.STALE,))
    except NotFoundError:
        if run is not None:
            raise
        term.err().write("no run is alive")
        return
    if not found.running:
        term.err().write(f"{found.name} is not running")
        return
    view = run_view.ending(found.deployment, term.err())
    term.out().write(found.stop(force, limit, view.event))
