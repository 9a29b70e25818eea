"""Lists of names as a person reads them."""

from __future__ import annotations

import re

SHOWN = 4  # of a list that repeats itself


def few(lines: list[str], shown: int = SHOWN) -> list[str]:
    return lines if len(lines) <= shown else [*lines[:shown], f"and {len(lines) - shown} more"]


def names(all_: list[str]) -> str:
    """a, then a and b, then a, b and c, and so on until: a, b, c, d and 12 more"""
    if len(all_) > SHOWN:
        return f"{', '.join(all_[:SHOWN])} and {len(all_) - SHOWN} more"
    return " and ".join(filter(None, (", ".join(all_[:-1]), *all_[-1:])))


# Verbs that follow a name in the catalogue's headlines, and what they are after several.
PLURALS = {
    "answers": "answer", "does": "do", "has": "have", "is": "are", "listens": "listen", "logs": "log", "moves": "move",
    "names": "name", "receives": "receive", "runs": "run", "serves": "serve", "spans": "span", "uses": "use",
    "was": "were",
}  # fmt: skip


def agreeing(sentence: str, who: str) -> str:
    """A sentence about `who` with the verb behind it in the plural where they are several: "a and b have …"."""
    if " and " not in who:
        return sentence
    return re.sub(
        rf"{re.escape(who)} (\w+)", lambda found: f"{who} {PLURALS.get(found[1], found[1])}", sentence, count=1
    )
