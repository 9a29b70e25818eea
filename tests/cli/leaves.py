"""The verbs as click commands, built as pdctl builds them."""

from __future__ import annotations

import typer

from pdctl.cli.app import VERBS
from pdctl.cli.usage import build


def commands() -> dict[str, typer.core.TyperCommand]:
    """Every verb that does something, by the words that name it."""
    found = {}
    for verb in VERBS:
        leaf = typer.main.get_command(build(verb)).commands[verb.name]
        below = getattr(leaf, "commands", None)
        found.update({f"{verb.name} {name}": one for name, one in below.items()} if below else {verb.name: leaf})
    return found


LEAVES = commands()
