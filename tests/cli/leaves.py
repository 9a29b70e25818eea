"""The verbs as click commands, built as pdctl builds them."""

from __future__ import annotations

import typer

from pdctl.cli.app import VERBS, functions
from pdctl.cli.usage import build


def commands() -> dict[str, typer.core.TyperCommand]:
    """Every verb that does something, by the words that name it."""
    found = {}
    for verb in VERBS:
        for name in functions(verb):
            leaf = typer.main.get_command(build(verb, (verb.name, name))).commands[verb.name]
            found[f"{verb.name} {name}".rstrip()] = leaf.commands[name] if name else leaf
    return found


LEAVES = commands()
