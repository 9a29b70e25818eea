"""`pdctl ls`: the runs of this machine."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer

from pdctl.launch import clusters
from pdctl.launch.state import home, load_all, runs_of_others
from pdctl.render import run_view, term


class RunListForm(str, Enum):
    TABLE = "table"
    JSON = "json"


def command(
    output: Annotated[RunListForm, typer.Option("--output", "-o", help="Form of the answer.")] = RunListForm.TABLE,
) -> None:
    """List runs, the latest first: those that are over too.

    \b
    pdctl ls
    pdctl ls -o json
    """
    root = home(os.environ)
    found, unreadable = load_all(root)
    elsewhere = clusters.load_all(root)
    if output is RunListForm.JSON:
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
