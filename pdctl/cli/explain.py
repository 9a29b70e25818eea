"""`pdctl explain`: what a code means, why it happens, and what to do."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pdctl.catalogue import book
from pdctl.cli.parameters import argument, option
from pdctl.errors import UsageError
from pdctl.render import explain, term


class ExplainForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def command(
    words: Annotated[
        list[str] | None, argument(metavar="[CODE|NAME]...", help="A code, its name, or a pattern of them.")
    ] = None,
    every: Annotated[bool, option("--all", help="The whole catalogue.")] = False,
    output: Annotated[ExplainForm, option("--output", "-o", help="Form of the answer.")] = ExplainForm.TEXT,
) -> None:
    """Say what a code means, why it happens, how it shows, and what to do.

    \b
    pdctl explain PD201
    pdctl explain bootstrap-port-null
    pdctl explain PD2 '*-mismatch'          # all that begin so, or match
    pdctl explain --all
    pdctl explain --all -o json
    """
    if every and words:
        raise UsageError(f"--all does not go with {words[0]}", "name codes, or give --all alone")
    if not every and not words:
        raise UsageError("no code was named", "pdctl explain PD201, or pdctl explain --all")
    entries = book.ENTRIES if every else book.select(words or [])
    stream = term.out()
    if output is ExplainForm.JSON:
        stream.write(explain.to_json(entries))
    elif output is ExplainForm.MARKDOWN:
        stream.write(explain.markdown(entries).rstrip())
    elif len(entries) == 1:
        explain.show(entries[0], stream)
    else:
        explain.listing(entries, stream)
