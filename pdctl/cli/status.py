"""`pdctl status`: ask every process of a run how it is."""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import elsewhere
from pdctl.cli.options import seconds
from pdctl.errors import ExitCode, NotReadyError
from pdctl.launch import run_health
from pdctl.launch.run import State
from pdctl.launch.state import RunDir, home, pick
from pdctl.render import run_tables, term

if TYPE_CHECKING:
    from pdctl.launch.run import Run
    from pdctl.launch.run_health import RunHealth

POLL = 0.5  # seconds between two questions while waiting


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
    cluster = elsewhere.find(run)
    if cluster is not None:
        elsewhere.status(cluster, output is StatusForm.JSON, wait, seconds("--timeout", timeout))
        return
    found = _probe(pick(home(os.environ), run, (State.FAILED, State.STALE)))
    if wait:
        found = _await_ready(found, seconds("--timeout", timeout))
    if output is StatusForm.JSON:
        term.out().write(run_tables.status_json(found))
    else:
        run_tables.status(found, term.out())
    if not found.ready:
        raise typer.Exit(int(ExitCode.NOT_READY))


def _await_ready(found: RunHealth, limit: float) -> RunHealth:
    """Raises NotReadyError naming what is missing; a run that is over is not waited for."""
    deadline = time.monotonic() + limit
    while not found.ready:
        if found.state in (State.STOPPED, State.FAILED, State.STALE):
            raise NotReadyError(f"{found.name} is {found.state.value}: {found.note}", f"pdctl logs {found.name}")
        if time.monotonic() >= deadline:
            missing = "".join(f"\n  {each.name}: {each.missing}" for each in found.instances if each.missing)
            raise NotReadyError(f"{found.name} is not ready after {limit:g} s{missing or ': still verifying'}")
        time.sleep(POLL)
        found = _probe(pick(home(os.environ), found.name))
    return found


def _probe(run: Run) -> RunHealth:
    return run_health.probe(run, RunDir.of(home(os.environ), run.name))
