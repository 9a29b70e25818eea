"""`pdctl ls`: the runs of this machine."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer

from pdctl.launch.state import home, load_all
from pdctl.render import status, term


class Form(str, Enum):
    TABLE = "table"
    JSON = "json"


def command(
    output: Annotated[Form, typer.Option("--output", "-o", help="Form of the answer.")] = Form.TABLE,
) -> None:
    """List runs, the latest first: those that are over too.

    \b
    pdctl ls
    pdctl ls -o json
    """
    found, unreadable = load_all(home(os.environ))
    if output is Form.JSON:
        term.out().write(status.runs_json(found, unreadable))
    else:
        status.runs(found, term.out())
        if not found:
            term.err().write("no run was ever launched here")
        for sentence in unreadable:
            term.err().write(f"warning: {sentence}")
