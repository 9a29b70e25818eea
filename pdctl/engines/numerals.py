"""Numbers in foreign text: the one place that turns the digits of a log, a manifest or an answer into numbers.

int() accepts digits of every script, raises for `²`, which isdigit() calls a digit, and for more than 4300 digits;
float() accepts `nan`, `1e400` and `1_0`. These functions return a number within the wanted bounds, or None. Digits
already bounded by a pattern of bytes or of [0-9] (a clock's, a line number's) do not need them.
"""

from __future__ import annotations

from functools import lru_cache

from pdctl.quick_definitions import compile_late

LARGEST = 2**64 - 1  # upper bound of a room, a count and a size
PORT_DIGITS = 5
# From yocto to yotta: nothing beyond that is a measurement, and sums, products and quotients could overflow.
LEAST, MOST = 1e-24, 1e24
_DIGITS = 20  # of LARGEST
_RUN = compile_late("[0-9]+")
# No two adjacent parts match the same character, so a long malformed number costs linear, not quadratic, time.
_REAL = compile_late(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole(text: str | None, most: int = LARGEST) -> int | None:
    """The integer in a text of digits alone, 0 to `most`; else None."""
    if not text or len(text) > _DIGITS or not (text.isascii() and text.isdigit()):
        return None
    found = int(text)
    return found if found <= most else None


def signed(text: str | None, most: int = LARGEST) -> int | None:
    """Like `whole`, but also with a minus sign: -1 often stands for `any` or `all`."""
    if not text or text[0] != "-":
        return whole(text, most)
    found = whole(text[1:], most)
    return None if found is None else -found


@lru_cache(maxsize=16)  # each room of a large batch asks for the rooms of the same few lines
def wholes(text: str) -> tuple[int, ...]:
    """Every run of digits, in order, except those that are too large."""
    return tuple(found for run in _RUN.findall(text) if len(run) <= _DIGITS and (found := int(run)) <= LARGEST)


def port(text: str | None) -> int | None:
    """A port, of up to five digits. 70000 is not a valid one either, but a check can then report it."""
    return whole(text, 10**PORT_DIGITS - 1)


def real(text: str | None) -> float | None:
    """The number in `12`, `0.5`, `.5` or `1.2e-05`, with or without a sign; else None."""
    return measured(float(text)) if text and _REAL.fullmatch(text) else None


def measured(found: float) -> float | None:
    """`found` if it can be a measurement, else None; a number next to zero becomes 0.0."""
    size = abs(found)
    if size < LEAST:
        return 0.0
    return found if size <= MOST else None  # false for NaN


def counted(found: int) -> int | None:
    """An integer from a peer's JSON, or None if 64 bits do not hold it."""
    return found if -LARGEST <= found <= LARGEST else None
