"""`${VAR}`, `${VAR:-default}` and `$$` in values, as compose reads them; keys are left alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.topology.diagnostic import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENING = re.compile(r"\$(?:\$|\{)?")
DEEPEST = 8

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Fault(NamedTuple):
    """`fragment` is the offending stretch of the text as written."""

    code: Code
    fragment: str
    message: str
    help: str


class Expanded(NamedTuple):
    text: str
    faults: tuple[Fault, ...]


def expand(text: str, environ: Mapping[str, str], depth: int = 0) -> Expanded:
    """Replace every `${…}`. Unset and empty are alike for `:-`, as in a shell; `depth` counts defaults in defaults."""
    if depth > DEEPEST:
        return Expanded("", (Fault(Code.BAD_INTERPOLATION, text, "defaults within defaults without end", "write one"),))
    out: list[str] = []
    faults: list[Fault] = []
    at = 0
    while match := _OPENING.search(text, at):
        out.append(text[at : match.start()])
        at = match.end()
        if match[0] == "$$":
            out.append("$")
        elif match[0] == "${":
            end = _closing(text, at)
            value, found = _variable(text[at : end - 1], text[match.start() : end], environ, depth)
            out.append(value)
            faults += found
            at = end
        else:
            faults.append(_lone(text, match.start()))
    out.append(text[at:])
    return Expanded("".join(out), tuple(faults))


def _closing(text: str, at: int) -> int:
    """Just behind the `}` that closes a `${` whose inside begins at `at`; a default may hold `${…}` of its own."""
    depth = 1
    for index in range(at, len(text)):
        depth += (text[index] == "{" and text[index - 1] == "$") - (text[index] == "}")
        if depth == 0:
            return index + 1
    return len(text) + 1


def _variable(inside: str, fragment: str, environ: Mapping[str, str], depth: int) -> tuple[str, list[Fault]]:
    name, dash, default = inside.partition(":-")
    if not fragment.endswith("}") or not _NAME.fullmatch(name):
        known = "pdctl reads ${VAR}, ${VAR:-default} and $$ (a dollar sign)"
        return "", [Fault(Code.BAD_INTERPOLATION, fragment, f"`{fragment}` is not a variable", known)]
    if environ.get(name) or (name in environ and not dash):
        return environ[name], []
    if dash:
        nested = expand(default, environ, depth + 1)
        return nested.text, list(nested.faults)
    fix = f"export {name}, or give it a default: ${{{name}:-…}}"
    return "", [Fault(Code.UNSET_VARIABLE, fragment, f"the environment has no variable {name}", fix)]


def _lone(text: str, at: int) -> Fault:
    name = _NAME.match(text, at + 1)
    fragment = text[at : name.end() if name else at + 1]
    fix = f"write ${{{name[0]}}} for the variable, $$ for a dollar sign" if name else "write $$ for a dollar sign"
    return Fault(Code.BAD_INTERPOLATION, fragment, "a `$` on its own", fix)
