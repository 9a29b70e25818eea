"""Prometheus text, as engines and routers answer GET /metrics: its samples, their labels, sums of families."""

from __future__ import annotations

import re
from sys import intern
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# engines use colons in names: "sglang:num_running_reqs"
NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
LABEL = re.compile(r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(.)")
MAX_FAMILIES = 10_000
LEFT_OUT = ("_bucket", "_created")


class Sample(NamedTuple):
    name: str
    labels: str  # as written, without the braces
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The finite samples, since NaN and infinity are not measurements; of a histogram, its sum and count."""
    names: set[str] = set()
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        name, brace, rest = line.partition("{")
        if not brace:
            name, _, rest = line.partition(" ")
        if name.endswith(LEFT_OUT):
            continue
        # a label's value may contain any character, so the last brace ends the labels
        written, _, tail = rest.rpartition("}") if brace else ("", "", rest)
        value = _number(tail)
        if value is None:
            continue
        if name not in names:
            if not NAME.fullmatch(name):
                continue
            names.add(name)
        yield Sample(name, written, value)


def _number(tail: str) -> float | None:
    """The value; a timestamp may follow it."""
    fields = tail.split(None, 1)
    return numerals.real(fields[0]) if fields else None


def totals(text: str) -> Mapping[str, float]:
    """Each family summed over its series."""
    found: dict[str, float] = {}
    for name, _, value in samples(text):
        if name in found:
            found[name] += value
        elif len(found) < MAX_FAMILIES:
            found[intern(name)] = value
    return found


def labels(written: str) -> Mapping[str, str]:
    return {name: ESCAPE.sub(_escaped, value) for name, value in LABEL.findall(written)}


def _escaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
