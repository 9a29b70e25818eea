"""What a single value means: YAML 1.2's rules, and the values on which YAML 1.1 tools disagree with them.

Editors, `kubectl` and PyYAML read YAML 1.1, where `no` is false, `010` is 8 and `2:30` is 150. Such a value is refused
with the spelling that means one thing everywhere.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.topology.tree import Scalar


class Sort(Enum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    DOUBTFUL = "doubtful"


class Doubt(NamedTuple):
    says: str  # {octal} and {base60}: what one of the two reads
    rewrite: str  # how to say it unambiguously: a value, or what `rewritten` makes of it


WORDS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}  # YAML 1.1's further booleans
DOUBTS = {
    True: Doubt("is true in YAML 1.1 and text in YAML 1.2", "true"),
    False: Doubt("is false in YAML 1.1 and text in YAML 1.2", "false"),
    "octal": Doubt("is octal in YAML 1.1 ({octal}) and decimal in YAML 1.2", "decimal"),
    "padded": Doubt("is text in YAML 1.1 and a number in YAML 1.2", "decimal"),
    "octal12": Doubt("is octal in YAML 1.2 ({octal}) and text in YAML 1.1", "octal"),
    "underscores": Doubt("is a number in YAML 1.1 and text in YAML 1.2", "digits"),
    "base60": Doubt("is {base60} in YAML 1.1 and text in YAML 1.2", "time"),
}
# One pattern rather than six: compiling it is most of what reading a small file costs.
_DIGITS = re.compile(
    r"(?P<integer>[-+]?(?:0|[1-9]\d*))|(?P<octal>[-+]?0[0-7]+)|(?P<padded>[-+]?0\d+)|(?P<octal12>[-+]?0o[0-7]+)"
    r"|(?P<underscores>[-+]?\d[\d_]*_[\d_]*)|(?P<base60>\d+(?::[0-5]?\d)+)"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)",
    re.ASCII,
)
LONGEST = 64  # characters of anything that is meant as a number
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def sort(value: Scalar) -> Sort:
    """What the value is. One that `${…}` filled in is read as if unquoted, because flow maps force quotes on it."""
    text = value.text
    if not value.plain and not value.note:
        return Sort.TEXT
    if text in _BOOLEAN:
        return Sort.BOOLEAN
    if value.null or value.blank:
        return Sort.NULL
    if doubt(text):
        return Sort.DOUBTFUL
    match = _digits(text)
    if match is None:
        return Sort.TEXT
    return Sort.INTEGER if match.lastgroup == "integer" else Sort.NUMBER


def _digits(text: str) -> re.Match[str] | None:
    return _DIGITS.fullmatch(text) if len(text) <= LONGEST else None


def boolean(text: str) -> bool:
    return _BOOLEAN[text]


def doubt(text: str) -> Doubt | None:
    """Why YAML 1.1 and 1.2 disagree about an unquoted value; None when they do not."""
    word = WORDS.get(text.lower())
    if word is not None:
        return DOUBTS[word]
    match = _digits(text)
    return DOUBTS.get(match.lastgroup or "") if match else None


def explain(row: Doubt, text: str) -> str:
    """Why the value is refused, as the end of a sentence."""
    octal = int(text.replace("o", ""), 8) if "octal" in row.says else 0
    base60 = 0
    if "base60" in row.says:
        for part in text.split(":"):
            base60 = base60 * 60 + int(part)
    return row.says.format(octal=octal, base60=f"{base60:,}")


def rewritten(row: Doubt, text: str) -> str:
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
