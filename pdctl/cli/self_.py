"""`pdctl self check`: what this pdctl is and what it can do here."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl.cli.parameters import option
from pdctl.launch.installed_parts import inspect
from pdctl.render import term

if TYPE_CHECKING:
    from pdctl.launch.installed_parts import Installation
    from pdctl.render.term import Term

WORDS = {
    "source": "a source tree",
    "pip": "installed by pip",
    "pyz": "one file for a Python",
    "executable": "one executable",
}


class SelfForm(str, Enum):
    TEXT = "text"
    JSON = "json"


def check(
    output: Annotated[SelfForm, option("--output", "-o", help="Form of the answer.")] = SelfForm.TEXT,
) -> None:
    """Say what this pdctl is: version, kind of install, Python, and what it can do here. Contacts nobody.

    \b
    pdctl self check
    pdctl self check -o json
    """
    found = inspect()
    if output is SelfForm.JSON:
        written = {**found._asdict(), "parts": [part._asdict() for part in found.parts]}
        term.out().write(json.dumps(written, indent=2))
    else:
        _show(found, term.out())


def _show(found: Installation, to: Term) -> None:
    to.write(f"pdctl {found.version}, {WORDS[found.kind]}: {found.file}")
    to.write(f"Python {found.python}" + (f", {found.libc}" if found.libc else ""))
    width = max(len(part.name) for part in found.parts)
    for part in found.parts:
        to.write(f"{'✓' if part.present else '✗'} {part.name:<{width}}  {part.detail}")
        if part.fix:
            to.write(f"  {'':<{width}}  fix: {part.fix}")


SUBVERBS = (check,)
