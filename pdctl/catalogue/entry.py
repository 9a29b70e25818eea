"""One failure mode of a PD deployment: its stable code, and everything pdctl says about it."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{([a-z_]+)(?:\|((?:[^{}]|\{[^{}]*\})*))?\}")  # {name} or {name|words without a value}


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Needs(str, Enum):
    """What must be looked at to see it. The cheapest first."""

    TOPOLOGY = "topology"  # a topology or manifest alone
    ENDPOINT = "endpoint"  # an engine's HTTP surface or bootstrap server
    ROUTER = "router"
    HOST = "host"
    CANARY = "canary"  # a real request
    LOG = "log"


class Entry(NamedTuple):
    """Codes retire, they never return. `slug` is the code's name in kebab case.

    headline: one line, may use placeholders that the check fills: {name}, or {name|words} with the words that stand
    there in a general explanation. explain: what happens, why, how it is recognised, and after "Next:" which side to
    look at then. fix: one command or edit to paste, may use the same placeholders.
    versions: the affected releases, in words. source: where it is known from.
    reports: public threads it was reported in, as "sglang#14439" (references.py has the addresses).
    unseen: "" when a check or log signature exists; otherwise why it cannot be checked.
    """

    code: str
    slug: str
    severity: Severity
    headline: str
    explain: str
    fix: str
    needs: tuple[Needs, ...]
    versions: str
    source: str
    unseen: str = ""
    reports: tuple[str, ...] = ()


def cited(reports: str) -> tuple[str, ...]:
    """Reports as they are listed in the catalogue: words of one text."""
    return tuple(reports.split())


def fill(text: str, values: Mapping[str, object]) -> str:
    """Headline or fix with its placeholders filled; one without a value becomes its words, or stands in capitals."""

    def word(found: re.Match[str]) -> str:
        name, words = found[1], found[2]
        return str(values[name]) if name in values else words or name.upper().replace("_", "-")

    return PLACEHOLDER.sub(word, text)
