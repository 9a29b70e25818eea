"""Numbers in what somebody else wrote: the one place that turns digits of a log, a manifest or an answer into numbers.

int() takes digits of every script, raises at `²`, which isdigit() calls a digit, and at more than 4300 of them; float()
takes `nan`, `1e400` and `1_0`. What comes from here is a number of the size that is asked for, or None. Digits that a
pattern of bytes or of [0-9] has counted already (a clock's, a line number's) need none of this.
"""

from __future__ import annotations

import re

LARGEST = 2**64 - 1  # what a room, a count and a size are at most
PORT_DIGITS = 5
# From yocto to yotta. Beyond that nothing is measured, and sums, products and quotients of a few could overflow.
LEAST, MOST = 1e-24, 1e24
_DIGITS = 20  # of LARGEST
_RUN = re.compile("[0-9]+")
# No two neighbouring parts take the same letter: a long number that ends badly costs its length, not the square of it.
_REAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole(text: str | None, most: int = LARGEST) -> int | None:
    """Of digits alone, 0 to `most`."""
    if not text or len(text) > _DIGITS or not (text.isascii() and text.isdigit()):
        return None
    found = int(text)
    return found if found <= most else None


def signed(text: str | None, most: int = LARGEST) -> int | None:
    """The same with a minus before it: -1 often stands for `any` or `all`."""
    if not text or text[0] != "-":
        return whole(text, most)
    found = whole(text[1:], most)
    return None if found is None else -found


def wholes(text: str) -> tuple[int, ...]:
    """Every run of digits, in order; those that are too large are left out."""
    return tuple(found for run in _RUN.findall(text) if (found := whole(run)) is not None)


def port(text: str | None) -> int | None:
    """Of what listens, and of a command line. 70000 can be no port either, but then a check can name it."""
    return whole(text, 10**PORT_DIGITS - 1)


def real(text: str | None) -> float | None:
    """`12`, `0.5`, `.5`, `1.2e-05`, with a sign or without."""
    return measured(float(text)) if text and _REAL.fullmatch(text) else None


def measured(found: float) -> float | None:
    """A number that somebody can have measured; next to nothing is nothing."""
    size = abs(found)
    if size < LEAST:
        return 0.0
    return found if size <= MOST else None  # which no NaN is


def counted(found: int) -> int | None:
    """An integer of a peer's JSON, as far as 64 bits hold it."""
    return found if -LARGEST <= found <= LARGEST else None
