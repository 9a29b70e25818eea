"""`pdctl down`: end a run from any shell."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pdctl.cli import elsewhere
from pdctl.cli.options import seconds
from pdctl.errors import NotFoundError
from pdctl.launch import remote
from pdctl.launch.run import State
from pdctl.launch.state import RunDir, home, pick
from pdctl.render import launch_view, term


def command(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Name of the run; not needed for a single one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do not let requests finish: end everything now.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for it to end.")] = "60s",
) -> None:
    """Stop a run and everything it started. Doing it twice is fine.

    \b
    pdctl down
    pdctl down blue --force
    """
    limit = seconds("--timeout", timeout)
    cluster = elsewhere.find(run)
    if cluster is not None:
        elsewhere.down(cluster, force, limit)
        return
    root = home(os.environ)
    try:
        found = pick(root, run, (State.STALE,))
    except NotFoundError:
        if run is not None:
            raise
        term.err().write("no run is alive")
        return
    if found.condition in (State.STOPPED, State.FAILED) and not found.survivors:
        term.err().write(f"{found.name} is not running")
        return
    was_stale = found.condition is State.STALE
    view = launch_view.PlainView(found.deployment, term.err(), attached=False)
    ended = remote.stop(RunDir.of(root, found.name), found, force, limit, view.event)
    how = "; its supervisor had died" if was_stale else ""
    term.out().write(f"{ended.name} is stopped{how}")
