"""`pdctl self check` as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.launch.installed_parts import Installation
    from pdctl.render.term import Term

WORDS = {
    "source": "a source tree",
    "pip": "installed by pip",
    "pyz": "one file for a Python",
    "executable": "one executable",
}


def text(found: Installation, term: Term) -> None:
    term.write(f"pdctl {found.version}, {WORDS[found.kind]}: {found.file}")
    term.write(f"Python {found.python}" + (f", {found.libc}" if found.libc else ""))
    width = max(len(part.name) for part in found.parts)
    for part in found.parts:
        term.write(f"{'✓' if part.present else '✗'} {part.name:<{width}}  {part.detail}")
        if part.fix:
            term.write(f"  {'':<{width}}  fix: {part.fix}")


def to_json(found: Installation) -> str:
    return json.dumps({**found._asdict(), "parts": [part._asdict() for part in found.parts]}, indent=2)
