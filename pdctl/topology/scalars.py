"""What a single value means: YAML 1.2's rules, `${VAR}` filled in, and where YAML 1.1 tools disagree.

Editors, `kubectl` and PyYAML read YAML 1.1, where `no` is false, `010` is 8 and `2:30` is 150. Such a value is refused
with the spelling that means one thing everywhere.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.topology.diagnostic import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.yaml_parser import Scalar

WORDS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}  # YAML 1.1's further booleans
# One pattern rather than six: compiling it is most of what reading a small file costs.
_DIGITS = compile_late(
    r"(?P<integer>[-+]?(?:0|[1-9]\d*))|(?P<octal>[-+]?0[0-7]+)|(?P<padded>[-+]?0\d+)|(?P<octal12>[-+]?0o[0-7]+)"
    r"|(?P<underscores>[-+]?\d[\d_]*_[\d_]*)|(?P<base60>\d+(?::[0-5]?\d)+)"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)",
    re.ASCII,
)
LONGEST = 64  # characters of anything that is meant as a number
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OPENING = compile_late(r"\$(?:\$|\{)?")
DEEPEST = 8
_NAME = compile_late(r"[A-Za-z_][A-Za-z0-9_]*")


class ScalarSort(Enum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    DOUBTFUL = "doubtful"


class YamlDoubt(NamedTuple):
    says: str  # {octal} and {base60}: what one of the two reads
    rewrite: str  # how to say it unambiguously: a value, or what `rewritten` makes of it


DOUBTS = {
    True: YamlDoubt("is true in YAML 1.1 and text in YAML 1.2", "true"),
    False: YamlDoubt("is false in YAML 1.1 and text in YAML 1.2", "false"),
    "octal": YamlDoubt("is octal in YAML 1.1 ({octal}) and decimal in YAML 1.2", "decimal"),
    "padded": YamlDoubt("is text in YAML 1.1 and a number in YAML 1.2", "decimal"),
    "octal12": YamlDoubt("is octal in YAML 1.2 ({octal}) and text in YAML 1.1", "octal"),
    "underscores": YamlDoubt("is a number in YAML 1.1 and text in YAML 1.2", "digits"),
    "base60": YamlDoubt("is {base60} in YAML 1.1 and text in YAML 1.2", "time"),
}


def sort(value: Scalar) -> ScalarSort:
    """What the value is. One that `${…}` filled in is read as if unquoted, because flow maps force quotes on it."""
    text = value.text
    if not value.plain and not value.note:
        return ScalarSort.TEXT
    if text in _BOOLEAN:
        return ScalarSort.BOOLEAN
    if value.null or value.blank:
        return ScalarSort.NULL
    if doubt(text):
        return ScalarSort.DOUBTFUL
    match = _digits(text)
    if match is None:
        return ScalarSort.TEXT
    return ScalarSort.INTEGER if match.lastgroup == "integer" else ScalarSort.NUMBER


def _digits(text: str) -> re.Match[str] | None:
    return _DIGITS.fullmatch(text) if len(text) <= LONGEST else None


def boolean(text: str) -> bool:
    return _BOOLEAN[text]


def doubt(text: str) -> YamlDoubt | None:
    """Why YAML 1.1 and 1.2 disagree about an unquoted value; None when they do not."""
    word = WORDS.get(text.lower())
    if word is not None:
        return DOUBTS[word]
    match = _digits(text)
    return DOUBTS.get(match.lastgroup or "") if match else None


def explain_doubt(row: YamlDoubt, text: str) -> str:
    """Why the value is refused, as the end of a sentence."""
    octal = int(text.replace("o", ""), 8) if "octal" in row.says else 0
    base60 = 0
    if "base60" in row.says:
        for part in text.split(":"):
            base60 = base60 * 60 + int(part)
    return row.says.format(octal=octal, base60=f"{base60:,}")


def rewritten(row: YamlDoubt, text: str) -> str:
    """The value the person most likely meant, in a spelling all YAML tools agree on."""
    if row.rewrite == "decimal":
        return text.lstrip("+-0") or "0"
    if row.rewrite == "octal":
        return str(int(text.replace("o", ""), 8))
    if row.rewrite == "digits":
        return text.replace("_", "")
    if row.rewrite == "time":
        units = ("h", "m", "s")[: text.count(":") + 1] if text.count(":") == 2 else ("m", "s")
        return "".join(f"{int(part)}{unit}" for part, unit in zip(text.split(":"), units, strict=False) if int(part))
    return row.rewrite


class BadVariable(NamedTuple):
    """`fragment` is the offending stretch of the text as written."""

    code: Code
    fragment: str
    message: str
    help: str


class Expanded(NamedTuple):
    text: str
    faults: tuple[BadVariable, ...]


def expand(text: str, environ: Mapping[str, str], depth: int = 0) -> Expanded:
    """Replace every `${…}`. Unset and empty are alike for `:-`, as in a shell; `depth` counts defaults in defaults."""
    if depth > DEEPEST:
        return Expanded(
            "", (BadVariable(Code.BAD_INTERPOLATION, text, "defaults within defaults without end", "write one"),)
        )
    out: list[str] = []
    faults: list[BadVariable] = []
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


def _variable(inside: str, fragment: str, environ: Mapping[str, str], depth: int) -> tuple[str, list[BadVariable]]:
    name, dash, default = inside.partition(":-")
    if not fragment.endswith("}") or not _NAME.fullmatch(name):
        known = "pdctl reads ${VAR}, ${VAR:-default} and $$ (a dollar sign)"
        return "", [BadVariable(Code.BAD_INTERPOLATION, fragment, f"`{fragment}` is not a variable", known)]
    if environ.get(name) or (name in environ and not dash):
        return environ[name], []
    if dash:
        nested = expand(default, environ, depth + 1)
        return nested.text, list(nested.faults)
    fix = f"export {name}, or give it a default: ${{{name}:-…}}"
    return "", [BadVariable(Code.UNSET_VARIABLE, fragment, f"the environment has no variable {name}", fix)]


def _lone(text: str, at: int) -> BadVariable:
    name = _NAME.match(text, at + 1)
    fragment = text[at : name.end() if name else at + 1]
    fix = f"write ${{{name[0]}}} for the variable, $$ for a dollar sign" if name else "write $$ for a dollar sign"
    return BadVariable(Code.BAD_INTERPOLATION, fragment, "a `$` on its own", fix)
