"""Every adapter with its rows, and which row a log line matches: one look-up by its first bytes, then only a few rows.

An unknown line costs the search for its message and one look-up; a known one also costs its row's pattern.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines import base, numerals
from pdctl.engines.base import Adapter, Speaker
from pdctl.engines.pdctl import own_adapters
from pdctl.engines.prefix import Prefix, cut, spell, split
from pdctl.engines.routers import router_adapters
from pdctl.engines.sglang import sglang_adapter
from pdctl.engines.sglang.logs import life
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.engines.base import Hint, Row, Sign
    from pdctl.engines.prefix import LineParts


# --- the adapters: the shipped ones, and those of the modules named in $PDCTL_ENGINES

# In the order in which their rows are tried: of rows that begin alike, the narrower comes first.
SHIPPED: tuple[Adapter, ...] = (
    own_adapters.ROUTER, own_adapters.ENGINE, own_adapters.LAUNCHER, sglang_adapter.ENGINE,
    router_adapters.SMG, router_adapters.SGLANG_ROUTER, router_adapters.MINI_LB,
)  # fmt: skip
ROWS: tuple[Row, ...] = tuple(row for one in SHIPPED for row in one.rows)


def adapters() -> tuple[Adapter, ...]:
    """The adapters of $PDCTL_ENGINES, then the shipped ones. Raise UsageError if a module brings no adapter."""
    return _all(os.environ.get(base.VARIABLE, ""))


def rows() -> tuple[Row, ...]:
    return tuple(row for one in adapters() for row in one.rows)


def adapter(speaker: Speaker | None) -> Adapter | None:
    return _by_speaker(os.environ.get(base.VARIABLE, "")).get(speaker)


def hints(speaker: Speaker, row: str) -> tuple[Hint, ...]:
    """The details of a speaker's row that distinguish its releases."""
    return _hints(os.environ.get(base.VARIABLE, "")).get((speaker, row), ())


def speaks(speaker: Speaker, other: Speaker) -> bool:
    """Whether a log of `speaker` may have lines of `other`: itself, the launcher, or one whose lines it shares."""
    known = adapter(speaker)
    return other in (speaker, Speaker.LAUNCHER) or (known is not None and known.shares is other)


def speaks_any(speakers: frozenset[Speaker], other: Speaker) -> bool:
    """Whether a log of one of `speakers` may have lines of `other`."""
    return other in speakers or any(speaks(speaker, other) for speaker in speakers)


def literal(sign: Sign) -> str:
    """The constant part of SGLang's line that proves `sign`."""
    return next(row.literal.decode() for row in life.ROWS if sign in row.proves)


@lru_cache(maxsize=4)
def _all(modules: str) -> tuple[Adapter, ...]:
    return (*base.brought(modules, "ADAPTER", Adapter), *SHIPPED)


@lru_cache(maxsize=4)
def _by_speaker(modules: str) -> Mapping[Speaker | None, Adapter]:
    return {one.speaker: one for one in _all(modules)}


@lru_cache(maxsize=4)
def _hints(modules: str) -> Mapping[tuple[Speaker, str], tuple[Hint, ...]]:
    found: dict[tuple[Speaker, str], tuple[Hint, ...]] = {}
    for one in _all(modules):
        for hint in one.hints:
            found[one.speaker, hint.row] = (*found.get((one.speaker, hint.row), ()), hint)
    return found


HEAD = 4  # bytes of the message by which rows are looked up


class Said(NamedTuple):
    """`values`: the groups that matched, and from a tracing span request_id, method, path, status, latency_us."""

    row: Row
    values: Mapping[str, str]
    prefix: Prefix


class RowMatch(NamedTuple):
    """A row and the groups of its pattern that matched."""

    row: Row
    values: dict[str, str]


class _Entry:
    """A row whose pattern is compiled on first use, because compiling all takes longer than most commands."""

    __slots__ = ("_pattern", "literal", "row", "speaker")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.speaker = row.speaker
        self.literal = row.literal
        self._pattern: re.Pattern[str] | None = None

    def read(self, message: str) -> re.Match[str] | None:
        if self._pattern is None:
            self._pattern = re.compile(self.row.pattern)
        return self._pattern.match(message)


class Speech:
    """Rows, indexed for matching. Earlier rows win over later ones."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        entries = [_Entry(row) for row in self.rows]
        places: dict[bytes, list[int]] = {}
        floating: list[int] = []
        for at, row in enumerate(self.rows):
            keys = heads(row.pattern)
            for key in keys:
                places.setdefault(key, []).append(at)
            if not keys:
                floating.append(at)
        # Rows without a fixed beginning are tried on every line, at their position among the others.
        self._floating = tuple(entries[at] for at in floating)
        self._by_head = {key: tuple(entries[at] for at in sorted((*own, *floating))) for key, own in places.items()}

    def match(self, raw: bytes, speakers: frozenset[Speaker] | None = None) -> Said | None:
        """The row that this line matches, or None. `speakers`: only rows these write (speaks_any); None: any."""
        parts = cut(raw)
        found = self.find(parts, speakers)
        if found is None:
            return None
        values = found.values if not parts.span else {**_span(parts.span), **found.values}
        return Said(found.row, MappingProxyType(values), spell(parts))

    def find(self, parts: LineParts, speakers: frozenset[Speaker] | None = None) -> RowMatch | None:
        """As `match`, without the rest of the line: less than half of its cost."""
        line, at = parts.line, parts.at
        message: str | None = None
        for entry in self._by_head.get(line[at : at + HEAD], self._floating):
            if line.find(entry.literal, at) < 0:
                continue
            if speakers is not None and not speaks_any(speakers, entry.speaker):
                continue
            if message is None:
                message = line[at:].decode("utf-8", "replace")
            found = entry.read(message)
            if found is not None:
                if b" HTTP/" in line and "HTTP/" not in entry.row.pattern and _ACCESS_END.search(line, at):
                    return None  # an access line, whatever its client wrote into a header that uvicorn trusts
                values = {name: value for name, value in found.groupdict().items() if value is not None}
                if "room" in values and numerals.whole(values["room"]) is None:
                    return None  # no room has such a number: the line is garbage
                return RowMatch(entry.row, values)
        return None

    def read(self, lines: Iterable[bytes]) -> Iterator[tuple[bytes, Said | None]]:
        """Each line of a log with its row; a row that continues another (`Row.follows`) matches only after that one."""
        before = ""
        for raw in lines:
            said = self.match(raw)
            if said is not None and said.row.follows and before not in (said.row.follows, said.row.id):
                said = None
            before = said.row.id if said is not None else ""
            yield raw, said


@lru_cache(maxsize=1)
def speech() -> Speech:
    """All rows but a user's own."""
    return Speech(rows())


@lru_cache(maxsize=4096)
def heads(pattern: str) -> frozenset[bytes]:
    """The possible first HEAD bytes of what `pattern` matches; empty if they are not fixed."""
    begins = pattern[: HEAD + 1]  # and the character that might make the last of them optional
    if len(begins) > HEAD and begins.isascii() and begins.replace(" ", "").isalnum():  # nearly always
        return frozenset((begins[:HEAD].encode(),))
    group = _CHOICE.match(pattern)
    starts = [lead(word + pattern[group.end() :]) for word in group[1].split("|")] if group else [lead(pattern)]
    return frozenset(start[:HEAD] for start in starts) if min(map(len, starts)) >= HEAD else frozenset()


def lead(pattern: str) -> bytes:
    """The literal text with which every match of `pattern` begins."""
    found = _LITERAL.match(pattern)
    assert found is not None  # it also matches the empty text
    return re.sub(r"\\(.)", r"\1", found[0], flags=re.DOTALL).encode()


# What uvicorn writes after the client's address, which X-Forwarded-For may have set.
_ACCESS_END = compile_late(rb' - "[A-Z]{3,10} [^\s"]* HTTP/\d(?:\.\d)?" \d{3}(?: [A-Za-z -]{1,40})?$')
# Characters that stand for themselves, except those that a following quantifier makes optional.
_LITERAL = compile_late(r"(?:(?:[^\\.^$*+?{}\[\]|()]|\\[^0-9A-Za-z])(?![*?{]))*", re.DOTALL)
# `(?:Prefill|Decode) batch`: only words, nothing that repeats.
_CHOICE = compile_late(r"\((?:\?:|\?P<\w+>)((?:[\w .:,'-]+\|)+[\w .:,'-]+)\)(?![*+?{])")
_FIELDS = compile_late(rb'(?<!\S)(request_id|uri|path|method|status_code|latency)="?([!-~]{1,512}?)"?(?= |$)')
_NAMES = {b"request_id": "request_id", b"uri": "path", b"path": "path", b"method": "method", b"status_code": "status"}


def _span(text: bytes) -> dict[str, str]:
    return {_NAMES.get(name, "latency_us"): value.decode("ascii") for name, value in _FIELDS.findall(text)}


KEPT = 20_000  # shapes counted separately; further ones are counted together
WIDEST = 120  # characters in a shape
# What differs between lines of one shape: numbers, ids, addresses, paths, quoted text.
_VARIABLE = (  # not compiled: only a survey needs it
    r"https?://[^\s,)\]}'\"]+|'[^']{1,200}'|\"[^\"]{1,200}\"|(?<![\w/])/[\w./-]{2,}|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,}){0,4}\b"
    r"|0x[0-9a-f]+|-?\d+(?:\.\d+)*"
)


class Counted(NamedTuple):
    row: Row
    lines: int


class LineShape(NamedTuple):
    """Unknown lines that differ only in numbers, names and addresses; `example` is the first of them."""

    text: str
    lines: int
    example: str


class Survey(NamedTuple):
    """`empty`: blank lines, which are neither known nor unknown. `rows`, `shapes`: the most frequent first."""

    lines: int
    known: int
    empty: int
    rows: tuple[Counted, ...]
    shapes: tuple[LineShape, ...]

    @property
    def unknown(self) -> int:
        return self.lines - self.known - self.empty


def survey(lines: Iterable[bytes], speech: Speech) -> Survey:
    """Count known and unknown lines in one pass; memory is bounded by KEPT shapes."""
    total = empty = 0
    rows: Counter[str] = Counter()
    known: dict[str, Row] = {}
    shapes: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for raw, said in speech.read(lines):
        total += 1
        if said is not None:
            rows[said.row.id] += 1
            known.setdefault(said.row.id, said.row)
        elif not raw.strip():
            empty += 1
        else:
            _unknown(raw, shapes, examples)
    return Survey(
        total, rows.total(), empty,
        tuple(Counted(known[name], count) for name, count in _ordered(rows)),
        tuple(LineShape(text, count, examples.get(text, "")) for text, count in _ordered(shapes)),
    )  # fmt: skip


def _unknown(raw: bytes, shapes: Counter[str], examples: dict[str, str]) -> None:
    message = split(raw[:4096]).message
    text = re.sub(_VARIABLE, "…", message)[:WIDEST].rstrip()
    if text not in examples:
        if len(examples) >= KEPT:
            shapes["(others)"] += 1
            return
        examples[text] = message[:400]
    shapes[text] += 1


def _ordered(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
