"""What one line of a log says: read by a row of the dialect, timed by a clock, and first repaired if it was damaged."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Level, Row, Speaker
from pdctl.engines.prefix import SGLANG, Stamp, cut, split, stamp_of
from pdctl.engines.routers import sglang_router
from pdctl.engines.row_matching import Said, Speech, speaks_any
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pdctl.engines.base import Phase, Sign
    from pdctl.engines.identify import Identity
    from pdctl.engines.prefix import Prefix
    from pdctl.logs.clock import Clock, Instant
    from pdctl.logs.part import LogPart


class Place:
    """offset: the byte where the line begins in the (decompressed) file, which identifies it.

    line: 1-based; given as a function, it is counted when it is asked for. origin: for a line from a merged stream,
    the path of that stream, in which `line` counts; else "".
    """

    __slots__ = ("_line", "file", "offset", "origin")

    def __init__(self, file: str, line: int | Callable[[int], int], offset: int, origin: str = "") -> None:
        self.file, self._line, self.offset, self.origin = file, line, offset, origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (self.file, self.offset) == (other.file, other.offset)

    def __hash__(self) -> int:
        return hash((self.file, self.offset))

    @property
    def line(self) -> int:
        return self._line if isinstance(self._line, int) else self._line(self.offset)

    @property
    def path(self) -> str:
        """The file in which `line` counts, as answers name it."""
        return self.origin or self.file

    @property
    def on_disk(self) -> str:
        """That file as a command must name it: answers name a run's log by its path within the run's home."""
        return self.path if self.file.startswith(f"{self.origin}[") else self.file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class RawLine(NamedTuple):
    """A line as in the file, without its newline, cut to 64 KiB; place.offset is right all the same."""

    place: Place
    line: bytes
    part: LogPart


class Event(NamedTuple):
    """instance: the lane, that is, a run's instance name or the file's stem. rank: "" or as logged ("DP1 TP3").

    t: seconds since the epoch on the clock of the host that wrote it, None if the line carries no time;
    uncertainty_s: the line was written in [t, t + uncertainty_s), 1.0 for a prefix of whole seconds.
    values: the row's named groups, as text; room and rid are among them if the line names them.
    """

    instance: str
    role: str
    rank: str
    row: Row
    values: Mapping[str, str]
    t: float | None
    uncertainty_s: float
    place: Place
    text: str

    @property
    def phase(self) -> Phase | None:
        return self.row.phase

    def proves(self, *signs: Sign) -> bool:
        """Whether the line proves any of these signs."""
        proven = self.row.proves
        for sign in signs if proven else ():  # noqa: SIM110 - asked ten times for each line, and most prove nothing
            if sign in proven:
                return True
        return False

    @property
    def room(self) -> int | None:
        return numerals.whole(self.values.get("room"))

    @property
    def rid(self) -> str | None:
        return self.values.get("rid")


_NOTHING: Mapping[str, str] = MappingProxyType({})
MOST_CACHED = 8192  # lines
_MOST_KEPT = 1024  # lines of a log whose events are kept: starts, ends and the time around a room share them


class EventReader:
    """Reads the lines of one log. of_engine: the log is an engine's, so no line is a router's."""

    def __init__(self, instance: str, identity: Identity, speech: Speech, clock: Clock) -> None:
        self._instance = instance
        self._role = identity.role
        self.of_engine = identity.role in ("prefill", "decode", "unified")
        self._speech = speech
        self._clock = clock
        self._speakers = None if identity.speaker is None else frozenset({identity.speaker})
        self._kept: dict[tuple[str, int, bytes], tuple[Event, ...]] = {}
        self._unread = Row("", identity.speaker or Speaker.SGLANG, Level.INFO, "", b"", "", "")

    def known(self, raw: RawLine) -> tuple[Event, ...]:
        """The events that rows of the dialect read in the line: usually one, none for an unknown line."""
        key = (raw.place.file, raw.place.offset, raw.line)
        found = self._kept.get(key)
        if found is None:
            found = tuple(self._known(raw))
            if len(self._kept) < _MOST_KEPT:
                self._kept[key] = found
        return found

    def _known(self, raw: RawLine) -> Iterator[Event]:
        for start, text in split_joined_lines(raw.line):
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)

    def naming(self, raw: RawLine, wanted: Callable[[bytes], bool]) -> Iterator[Event]:
        """The same for a line found by a search; if no row reads it, an event whose row has the id ""."""
        for start, text in split_joined_lines(raw.line):
            if start and not wanted(text):
                continue
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)
            elif wanted(text) or len(text) == len(raw.line):
                yield self._event(raw, start, self._unread, _NOTHING, split(text))

    def instant(self, line: bytes) -> Instant | None:
        stamp = stamp_of(cut(line))
        return self._clock.read(stamp) if stamp is not None else None

    def _event(self, raw: RawLine, start: int, row: Row, values: Mapping[str, str], prefix: Prefix) -> Event:
        instant = self._clock.read(prefix.stamp) if prefix.stamp else None
        t, uncertainty = instant or (None, 0.0)
        place = (
            Place(raw.place.file, raw.place.line, raw.place.offset + start, raw.place.origin) if start else raw.place
        )
        return Event(
            self._instance, self._role or row.role, prefix.ranks, row, values, t, uncertainty, place, prefix.message
        )


class CachedSpeech(Speech):
    def __init__(self, speech: Speech) -> None:
        vars(self).update(vars(speech))  # reuse its tables: building them takes longer than most queries
        self._heard: dict[bytes, Said | None] = {}

    def match(self, raw: bytes, speakers: frozenset[Speaker] | None = None) -> Said | None:
        """As Speech.match, cached: the row that wins among all rows also wins among those of its own speaker."""
        if raw in self._heard:
            said = self._heard[raw]
            if said is None or speakers is None or speaks_any(speakers, said.row.speaker):
                return said
        found = super().match(raw, speakers)
        if speakers is None and len(self._heard) < MOST_CACHED:
            self._heard[raw] = found
        return found


_SECOND = compile_late(rb"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?: [A-Z_]{2,7}\d{1,6}){0,6}\] ")
_MARK = b"\xef\xbb\xbf"
APART = 5  # seconds at most between two lines that ended up on one line
# A value in quotes, as repr, JSON and Rust's Debug write it: a quote of the same kind inside it is escaped. An
# apostrophe within a word does not open a value. A value without a closing quote matches up to the end of the text.
# The next three are strings, not compiled patterns: most logs never need them.
_QUOTED = (
    rb"""(?s)(?<![0-9A-Za-z])(?:'(?:[^'\\]|\\.)*\\?(?P<one>'|\Z)|"(?:[^"\\]|\\.)*\\?(?P<two>"|\Z))|(?P<odd>["`])"""
)
_BRACKETED = rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}"
_NESTED = 16  # levels of nested brackets
# Words after which sglang 0.5.3 to 0.5.23 writes a client's text without quotes: `Req RID …`, `request RID`, `for
# RID`, the text of an exception, a model's name, a body.
_CLIENTS = (
    rb"(?i)(?<![a-z])(?:rids?|req|requests?|abort\w*|for(?! \d)|models?|lora\w*|adapters?|tools?|functions?|texts?"
    rb"|prompts?|body|paths?|ur[il]s?|headers?|cookie|errors?|exceptions?|fail\w*|invalid|unknown|unexpected|users?"
    rb"|obj|input_\w+|names?|messages?|templates?|schemas?|grammars?|regex|json|reasons?|got|received?|object"
    rb"|sessions?|keys?|values?|params?|parameters?|parsers?|parsing|images?|files?|warning|id)(?![a-z])(?!='')"
)
# A truncated time at the beginning of a line: `20`, `2026-11`, `[2026-11-22 20:0`.
_HEAD = compile_late(rb"\[?20(?:\d{1,2}(?:-(?:\d{1,2}(?:-(?:\d{1,2}(?:[T ][\d:.,]{0,15})?)?)?)?)?)?")
_STYLE = compile_late(rb"\x1b\[([0-9;]{0,12})m")
_CUT_STYLE = compile_late(rb"\x1b(?:\[[0-9;]{0,12})?$")


def rejoined_lists(raws: Iterable[RawLine]) -> Iterator[RawLine]:
    """The lines, with those that continue a list joined to the line that opens it."""
    source = iter(raws)
    ahead: deque[RawLine] = deque()  # lines after an unfinished list that were already read
    while True:
        raw = ahead.popleft() if ahead else next(source, None)
        if raw is None:
            return
        if not sglang_router.opens_list(raw.line):
            yield raw
            continue
        ahead.extend(islice(source, sglang_router.LIST_LINES - 1 - len(ahead)))
        whole, taken = sglang_router.join_list([raw.line, *(one.line for one in ahead)])
        for _ in range(taken - 1):
            ahead.popleft()
        yield raw._replace(line=whole)


def split_joined_lines(line: bytes) -> list[tuple[int, bytes]]:
    """The line, or the lines that were joined in it, each with its offset in bytes."""
    if line.startswith(_MARK):
        return [(start and start + len(_MARK), text) for start, text in split_joined_lines(line[len(_MARK) :])]
    if line.count(b"[20") < 2:  # nearly always
        return [(0, line)]
    cuts = [0]
    for match in _SECOND.finditer(line, 1):
        if not _is_joint(line[cuts[-1] : match.start()], match[0]):
            break  # nor at any later stamp: the rest is the same client's text
        cuts.append(match.start())
    return [(start, line[start:end]) for start, end in pairwise([*cuts, len(line)]) if end > start]


def _is_joint(before: bytes, head: bytes) -> bool:
    """Whether `head` after `before` may begin another line of a process, and cannot be part of a client's text."""
    parts = cut(before)
    first, second = split(before).stamp, split(head).stamp
    if parts.layout is None or parts.layout.re is not SGLANG or first is None or second is None:
        return False
    if first.resolution_s != second.resolution_s or abs(_seconds(first) - _seconds(second)) > APART:
        return False
    text = parts.line[parts.at :]
    if any(found["odd"] or not (found["one"] or found["two"]) for found in re.finditer(_QUOTED, text)):
        return False
    text = re.sub(_QUOTED, b"''", text)
    for _ in range(_NESTED):
        text, found = re.subn(_BRACKETED, b"", text)
        if not found:
            break
    return not any(bracket in text for bracket in b"()[]{}") and re.search(_CLIENTS, text) is None


def _seconds(stamp: Stamp) -> float:
    """Seconds in a calendar in which every month has 31 days; only for comparing stamps close to each other."""
    days = (stamp.year * 12 + stamp.month) * 31 + stamp.day
    return ((days * 24 + stamp.hour) * 60 + stamp.minute) * 60 + stamp.second + stamp.micro / 1e6


def is_incomplete(line: bytes) -> bool:
    """Whether part of the line is missing: an unclosed style, bracket or quote, or a truncated time.

    False does not mean that the line is whole. A line of no known layout is incomplete only if it is the beginning of a
    stamp or not text; what a process prints on several lines, or a page wraps, counts as whole.
    """
    if b"\x00" in line or b"\xef\xbf\xbd" in line or not _is_text(line):
        return True
    if b"\x1b" in line:
        last = _STYLE.match(line, line.rfind(b"\x1b"))
        if last is None and _CUT_STYLE.search(line):
            return True
        style = last[1] if last is not None else next(iter(_STYLE.findall(line)[-1:]), b"")
        if style.strip(b"0"):
            return True
    parts = cut(line)
    if parts.layout is None:
        plain = _STYLE.sub(b"", line).strip()
        return bool(_HEAD.fullmatch(plain)) or (plain.startswith(b'{"') and not plain.endswith(b"}"))
    text = parts.line  # without the collector's part
    if not text[parts.at :].strip() or text.count(b'"') % 2:
        return True
    count = text.count  # a router's head of a MiB has thousands of lines
    return count(b"(") != count(b")") or count(b"[") != count(b"]") or count(b"{") != count(b"}")


def _is_text(line: bytes) -> bool:
    if line.isascii():
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
