"""`pdctl down`: end a run from any shell."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pdctl.errors import NotFoundError
from pdctl.launch import launched
from pdctl.launch.run import State
from pdctl.launch.state import home
from pdctl.render import run_view, term
from pdctl.units import flag_seconds


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
    limit = flag_seconds("--timeout", timeout)
    try:
        found = launched.find(home(os.environ), run, (State.STALE,))
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
