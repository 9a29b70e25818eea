"""Environments, of which the variables that diagnosis needs stay, and Kubernetes Secrets, of which nothing does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.doctor import secret_shapes as shapes
from pdctl.doctor.secret_span import (
    BLOCK,
    ESCAPED,
    FIELD,
    GONE,
    QUOTE,
    VARIABLE,
    Span,
    block_scalar,
    closing,
    end_of_line,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DUMPED = re.compile(
    rf"(?i)(?:environ\(|\benv(?:iron(?:ment)?)?[\"']?\s{{0,4}}[=:]\s{{0,4}})(?=\{{\s{{0,32}}{ESCAPED}[\"'])"
)
_MAPPED = re.compile(
    rf"[{{,]\s{{0,64}}{ESCAPED}[\"'](?P<name>[A-Za-z_]\w{{0,80}}){ESCAPED}[\"']\s{{0,8}}:\s{{0,8}}(?=[\"'\\])"
)
_LISTED_ENV = re.compile(
    rf"(?i)\benv(?:iron(?:ment)?)?[\"']?\s{{0,4}}[=:]\s{{0,4}}(?=\[\s{{0,64}}{ESCAPED}[\"'][A-Za-z_]\w{{0,80}}=)"
)
_ITEM = re.compile(rf"[\[,]\s{{0,64}}(?P<quote>{ESCAPED}[\"'])(?P<name>[A-Za-z_]\w{{0,80}})=")
_LINES = re.compile(
    r"(?m)(?:^|(?<=\0))[ \t]*(?:export |declare -x |set )?(?P<name>[A-Za-z_]\w{0,80})=(?P<value>[^\n\0]*)(?:[\n\0]|\Z)"
)
_K8S = re.compile(
    r"(?m)^[ \t]*-[ \t]+name:[ \t]*[\"']?(?P<name>[A-Z_][A-Z0-9_]{0,80})[\"']?[ \t]*\n"
    r"[ \t]+value:[ \t]*(?P<value>[^\n]+)"
)
_K8S_JSON = re.compile(
    r"\"name\"\s{0,4}:\s{0,4}\"(?P<name>[A-Z_][A-Z0-9_]{0,80})\"\s{0,4},\s{0,64}\"value\"\s{0,4}:\s{0,4}\"(?P<value>(?:[^\"\\]|\\.)*)\""
)
_SECRET_KIND = re.compile(r"(?m)^[ \t]*kind:[ \t]*[\"']?Secret[\"']?[ \t]*$")
_SECRET_DATA = re.compile(r"(?m)^(?P<indent>[ \t]*)(?:data|stringData):[ \t]*\n")
_SECRET_LINE = re.compile(r"[ \t]*[^\s:#]{1,253}:[ \t]*(?P<value>[^\n]*)")
_SECRET_JSON = re.compile(r"\"kind\"\s{0,8}:\s{0,8}\"Secret\"")
_DATA_JSON = re.compile(r"\"(?:data|stringData)\"\s{0,8}:\s{0,8}\{(?P<value>[^{}]*)\}")
FEW = 3  # lines NAME=value in a row that make an environment


def is_kept(name: str) -> bool:
    """Whether a bundle keeps the value of this variable."""
    return name in shapes.KEPT or name.startswith(shapes.KEPT_FAMILIES)


def environments(text: str) -> Iterator[Span]:
    for start in _DUMPED.finditer(text):
        at = start.end()
        while (found := _MAPPED.match(text, at)) is not None:
            opened = QUOTE.match(text, found.end())
            close = closing(text, opened.end(), opened["quote"]) if opened else None
            if opened is None or close is None:
                break
            yield from _variable(text, found["name"], opened.end(), close)
            at = close + len(opened["quote"])
    for start in _LISTED_ENV.finditer(text):
        at = start.end()
        while (found := _ITEM.match(text, at)) is not None:
            close = closing(text, found.end(), found["quote"])
            if close is None:
                break
            yield from _variable(text, found["name"], found.end(), close)
            at = close + len(found["quote"])
    run: list[re.Match[str]] = []
    for match in _LINES.finditer(text):
        if run and match.start() != run[-1].end():
            yield from _dumped(text, run)
            run = []
        run.append(match)
    yield from _dumped(text, run)
    for pattern in (_K8S, _K8S_JSON):
        for match in pattern.finditer(text):
            yield from _variable(text, match["name"], *match.span("value"))
    yield from _secret_objects(text)


def _dumped(text: str, run: list[re.Match[str]]) -> Iterator[Span]:
    if len(run) >= FEW:
        for match in run:
            yield from _variable(text, match["name"], *match.span("value"))


def _variable(text: str, name: str, start: int, end: int) -> Iterator[Span]:
    if not is_kept(name):
        bare = text[start:end].strip().strip("\"'")
        if bare and bare != GONE:
            lead = len(text[start:end]) - len(text[start:end].lstrip(" \t\"'"))
            trail = len(text[start:end]) - len(text[start:end].rstrip(" \t\r\"'"))
            yield Span(start + lead, max(end - trail, start + lead), VARIABLE)


def _secret_objects(text: str) -> Iterator[Span]:
    """The data of Kubernetes Secrets, whatever their keys are called."""
    if _SECRET_KIND.search(text):
        at = 0
        for one in text.split("\n---"):
            if _SECRET_KIND.search(one):
                for head in _SECRET_DATA.finditer(one):
                    yield from _under(text, at + head.end(), len(head["indent"]))
            at += len(one) + 4
    if _SECRET_JSON.search(text):
        for match in _DATA_JSON.finditer(text):
            yield from listed(text, match.start("value") - 1, FIELD)


def _under(text: str, at: int, indent: int) -> Iterator[Span]:
    while at < len(text):
        stop = end_of_line(text, at)
        line = text[at:stop]
        if line.strip() and len(line) - len(line.lstrip(" \t")) <= indent:
            return
        found = _SECRET_LINE.match(text, at, stop)
        if found is not None and BLOCK.match(text, found.start("value")):
            for block in block_scalar(text, at, found.start("value"), FIELD):
                yield block
                stop = end_of_line(text, block.end)
        elif found is not None:
            yield from _variable(text, "", *found.span("value"))
        at = stop + 1
