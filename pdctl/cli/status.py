"""`pdctl status`: ask every process of a run how it is."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer

from pdctl.errors import ExitCode
from pdctl.launch import launched
from pdctl.launch.run import State
from pdctl.launch.state import home
from pdctl.render import run_view, term
from pdctl.units import flag_seconds


class StatusForm(str, Enum):
    TABLE = "table"
    JSON = "json"


def command(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Name of the run; not needed for a single one.")
    ] = None,
    output: Annotated[StatusForm, typer.Option("--output", "-o", help="Form of the answer.")] = StatusForm.TABLE,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is ready.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait.")] = "5m",
) -> None:
    """Show the state of a run, instance by instance. Exit code 8: something is missing.

    \b
    pdctl status
    pdctl status blue -o json
    pdctl status blue --wait --timeout 2m
    """
    found = launched.find(home(os.environ), run, (State.FAILED, State.STALE))
    if wait:
        limit = flag_seconds("--timeout", timeout)
        health = found.await_ready(limit, lambda missing: run_view.cluster_waiting(missing, term.err()))
    else:
        health = found.health()
    if output is StatusForm.JSON:
        term.out().write(run_view.status_json(health))
    else:
        run_view.status(health, term.out())
    if not health.ready:
        raise typer.Exit(int(ExitCode.NOT_READY))
