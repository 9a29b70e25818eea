"""Text from outside (logs, answers of servers) as a terminal may show it: nothing in it steers, hides or reorders."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING

from pdctl.render.columns import elided

if TYPE_CHECKING:
    from pdctl.render.term import Term


def visible(text: str, term: Term | None = None) -> str:
    """Control, bidirectional and other unprintable characters as their escapes; `term`: and what it cannot encode."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else escape(letter) for letter in text.replace("\t", "    "))
    if term is not None and not term.unicode:
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text


def as_json(value: object, indent: int | None = 2) -> str:
    """A JSON document: letters as they are, but nothing that steers a terminal, reorders a line or is half a letter."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def escape(letter: str) -> str:
    r"""`\x1b`, `\u202e`: as a Python or JSON reader would write it; a byte of a name that is no UTF-8: `\xff`."""
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # PEP 383
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Columns of a terminal: East Asian wide letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def fitted(text: str, width: int) -> str:
    """At most `width` columns, the middle given up; unlike `elided` it counts columns, not letters."""
    if cells(text) <= width:
        return text
    kept = max(width, 4)
    while cells(cut := elided(text, kept)) > width and kept > 4:
        kept -= 1
    return cut


def wrapped(text: str, width: int) -> list[str]:
    """Broken between words; a word that is wider than `width` is cut in its middle."""
    lines: list[str] = []
    for word in text.split():
        if lines and cells(lines[-1]) + 1 + cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(fitted(word, width))
    return lines


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))
