"""The place in a file that a finding's evidence names, for views that annotate files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.doctor.finding import Finding

# `blue.yaml:12: …`, also behind the instance it is about: `decode-0: run.sh:3: …`
NAMED = re.compile(r"(?P<file>[^\s:]+):(?P<line>[1-9][0-9]{0,8})\b")
# What else is written NAME:NUMBER is an address: `127.0.0.1:8998`, `prefill:30000`, `node.example.com:8998`.
FILE = re.compile(r".*/.+|<stdin>|.+\.(?:ya?ml|json|sh|bash|log|txt|out|env|service|gz|zst)(?:\.\d{1,9})?")


class Place(NamedTuple):
    file: str
    line: int


def place(found: Finding) -> Place | None:
    """Where the value stands that was observed: what the evidence says of the finding's own instance, or else the line
    that has the value in it, or else the first that names a place."""
    named = [(line, one) for line in found.evidence if (one := _named(line)) is not None]
    own = [one for line, one in named if found.instance and line.startswith(f"{found.instance}: ")]
    holds = [one for line, one in named if found.observed and found.observed in line]
    return next(iter((*own, *holds, *(one for _, one in named))), None)


def _named(line: str) -> Place | None:
    for start in (0, line.find(": ") + 2):
        match = NAMED.match(line, start)
        if match is not None and FILE.fullmatch(match["file"]):
            return Place(match["file"], int(match["line"]))
    return None
