"""`pdctl self check`: what this pdctl is and what it can do here."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from pdctl.cli.app import EPILOG, SETTINGS
from pdctl.launch.installed_parts import inspect
from pdctl.render import installation, term

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, context_settings=SETTINGS)


class SelfForm(str, Enum):
    TEXT = "text"
    JSON = "json"


@app.callback()
def group() -> None:
    """A group of verbs, though it has one."""


@app.command(epilog=EPILOG)
def check(
    output: Annotated[SelfForm, typer.Option("--output", "-o", help="Form of the answer.")] = SelfForm.TEXT,
) -> None:
    """Say what this pdctl is: version, kind of install, Python, and what it can do here. Contacts nobody.

    \b
    pdctl self check
    pdctl self check -o json
    """
    found = inspect()
    if output is SelfForm.JSON:
        term.out().write(installation.to_json(found))
    else:
        installation.text(found, term.out())
