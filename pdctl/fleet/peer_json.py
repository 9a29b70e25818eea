"""A peer's JSON, read without trust: whatever it holds, a reader gets a value of the type it asked for, or None.

Numbers may be huge, strings may hold halves of surrogate pairs, nesting may be deep: none of it raises.
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
EXCERPT = 300  # characters of a peer's words that go into a reason
HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # how JSON writes half a character above U+FFFF
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def parse(body: bytes) -> object:
    """None for what is not JSON, and for what nests too deep to be read."""
    try:
        value = json.loads(body)
        return _whole(value) if HALF.search(body) else value
    except (ValueError, RecursionError):
        return None


def _whole(value: object) -> object:
    """The same without lone surrogates: they cannot be written anywhere."""
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
    """The objects of a list; what else stands in it is left out."""
    return tuple(entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def integer(value: object) -> int | None:
    """None, too, for one that 64 bits do not hold."""
    return numerals.counted(value) if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """As a float; None for one that nobody can have measured, be it infinite or only huge."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return numerals.measured(float(value))
    except OverflowError:
        return None


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def role(info: Object) -> str:
    """The role a /server_info document tells: the one it has now; "" when it says nothing.

    After a role switch (sglang 0.5.23) only the states of the schedulers tell: the document's own key is what the
    server was started with.
    """
    told = {text(state.get("disaggregation_mode")) for state in mappings(info.get("internal_states"))}
    live = told.pop() if len(told) == 1 else ""
    return live or text(info.get("disaggregation_mode"))


def message(value: object) -> str:
    """The words of an error in one of the shapes engines and routers use; empty when it has none of them."""
    for key in ("error", "detail", "message"):
        inner = mapping(value).get(key)
        value = inner if inner is not None else value
    return excerpt(value) if isinstance(value, str) else ""


def complaint(body: bytes) -> str:
    """The message of an error answer, or the start of whatever came."""
    return message(parse(body)) or excerpt(body[: 4 * EXCERPT].decode("utf-8", errors="replace"))


def excerpt(said: str) -> str:
    """One line of what a peer said, safe to show: no control characters, cut in the end."""
    line = CONTROL.sub(" ", said[: 4 * EXCERPT]).strip()
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"
