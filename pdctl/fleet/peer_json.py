"""Read a peer's JSON without trusting it: whatever it contains, a reader gets a value of the type asked for, or None.

Numbers may be huge, strings may contain lone surrogates, nesting may be deep: none of it raises.
"""

from __future__ import annotations

import json
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines import numerals

if TYPE_CHECKING:
    from collections.abc import Mapping

    Object = Mapping[str, object]

NOTHING: Object = MappingProxyType({})
EXCERPT = 300  # characters of a peer's text quoted in a reason
PLAIN = re.compile(r"[A-Za-z0-9._:/-]+")  # a word that needs no quotation marks
HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # how JSON writes one surrogate of a character above U+FFFF


def parse(body: bytes) -> object:
    """The body's value; None if it is not JSON, or nested too deep to be read."""
    try:
        value = json.loads(body)
        return _whole(value) if HALF.search(body) else value
    except (ValueError, RecursionError):
        return None


def _whole(value: object) -> object:
    """The same value without lone surrogates, which cannot be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(entry) for key, entry in value.items()}
    return value


def mapping(value: object) -> Object:
    return value if isinstance(value, dict) else NOTHING


def mappings(value: object) -> tuple[Object, ...]:
    """The objects in a list, without its other entries; () if it is not a list."""
    return tuple(entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def integer(value: object) -> int | None:
    """The integer; None also if 64 bits do not hold it."""
    return numerals.counted(value) if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """The number as a float; None if it cannot be a measurement, being infinite or huge."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return numerals.measured(float(value))
    except OverflowError:
        return None


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def role(info: Object) -> str:
    """The current role according to a /server_info document, "" if it names none.

    After a role switch (sglang 0.5.23) only the schedulers' states are current: the document's own key is the role
    the server was started in.
    """
    told = {text(state.get("disaggregation_mode")) for state in mappings(info.get("internal_states"))}
    live = told.pop() if len(told) == 1 else ""
    return quoted(live or text(info.get("disaggregation_mode")))


def message(value: object) -> str:
    """The message of an error in one of the shapes that engines and routers use, "" if it has none of them."""
    for key in ("error", "detail", "message"):
        inner = mapping(value).get(key)
        value = inner if inner is not None else value
    return excerpt(value) if isinstance(value, str) else ""


def complaint(body: bytes) -> str:
    """The message of an error answer, or the start of whatever was sent."""
    return message(parse(body)) or excerpt(body[: 4 * EXCERPT].decode("utf-8", errors="replace"))


def quoted(said: str) -> str:
    """A peer's text for a sentence of ours: its excerpt in quotation marks, unless that is one plain word.

    Without them a peer could write the rest of the sentence, or what reads like a second verdict.
    """
    shown = excerpt(said)
    return shown if not shown or PLAIN.fullmatch(shown) else '"' + shown.replace('"', "'") + '"'


def excerpt(said: str) -> str:
    """A peer's text as one line that is safe to show: truncated, and a space for what cannot be printed.

    That is control characters, and those of Unicode that are invisible or reorder what stands next to them.
    """
    line = said[: 4 * EXCERPT].strip()
    if not line.isprintable():
        shown = (letter if letter.isprintable() else "\0" for letter in line)
        line = re.sub("\0+", " ", "".join(shown)).strip()
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"
