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
    pattern: re.Pattern[str]
    says: str  # {0} is the value as it would be written unambiguously
    rewrite: str  # how: see _rewritten


_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d*)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

DOUBTS = (
    Doubt(re.compile("yes|on|y", re.IGNORECASE), "is true in YAML 1.1 and text in YAML 1.2", "true"),
    Doubt(re.compile("no|off|n", re.IGNORECASE), "is false in YAML 1.1 and text in YAML 1.2", "false"),
    Doubt(re.compile(r"[-+]?0[0-7]+"), "is octal in YAML 1.1 ({octal}) and decimal in YAML 1.2", "decimal"),
    Doubt(re.compile(r"[-+]?0o[0-7]+"), "is octal in YAML 1.2 ({octal}) and text in YAML 1.1", "octal"),
    Doubt(re.compile(r"[-+]?\d[\d_]*_[\d_]*"), "is a number in YAML 1.1 and text in YAML 1.2", "plain digits"),
    Doubt(re.compile(r"\d+(?::[0-5]?\d)+"), "is {base60} in YAML 1.1 and text in YAML 1.2", "time"),
)


def sort(value: Scalar) -> Sort:
    """What the value is. One that `${…}` filled in is read as if unquoted, because flow maps force quotes on it."""
    text = value.text
    if not value.plain and not value.note:
        return Sort.TEXT
    if text in _BOOLEAN:
        return Sort.BOOLEAN
    if value.null or value.blank:
        return Sort.NULL
    if _INTEGER.fullmatch(text):
        return Sort.INTEGER
    if doubt(text):
        return Sort.DOUBTFUL
    return Sort.NUMBER if _NUMBER.fullmatch(text) else Sort.TEXT


def boolean(text: str) -> bool:
    return _BOOLEAN[text]


def doubt(text: str) -> Doubt | None:
    return next((row for row in DOUBTS if row.pattern.fullmatch(text)), None)


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
    if row.rewrite == "plain digits":
        return text.replace("_", "")
    if row.rewrite == "time":
        units = ("h", "m", "s")[: text.count(":") + 1] if text.count(":") == 2 else ("m", "s")
        return "".join(f"{int(part)}{unit}" for part, unit in zip(text.split(":"), units, strict=False) if int(part))
    return row.rewrite
