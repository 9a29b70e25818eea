"""Find the releases that write the line of a log row: match its pattern against the templates from their sources.

A template fits a pattern if some line is both an instance of the template, with any text in its holes, and matched by
the pattern from its beginning. Literal letters of the pattern must be in the template itself and not in a hole, which
could contain anything; `inside` allows that for a row whose value is spelled out (the repr of a record).
"""

from __future__ import annotations

import re
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.engines.row_matching import lead
from tools.read_release.logs import HOLE

try:
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as sre
    import sre_parse as parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PARTS = re.compile(r"(\{\}|⟨|⟩)")
_CLASSES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdigit, sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    sre.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(), sre.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    sre.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}  # fmt: skip
MOST = 200  # repetitions that are distinguished: more than the longest fixed text after a repeat


class Step(NamedTuple):
    """One edge of the pattern. `reads`: (operator, argument) of one character, None for none, END at the line's end."""

    reads: tuple[Any, Any] | None
    to: int


END: tuple[Any, Any] = ("end", None)


class Automaton:
    """A pattern as edges between numbered states, from 0 to `final`. Lookaround assertions are assumed to hold."""

    def __init__(self, pattern: str) -> None:
        self.edges: list[list[Step]] = [[]]
        self.final = self._chain(list(parser.parse(pattern)), 0)

    def _new(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def _link(self, here: int, reads: tuple[Any, Any] | None, to: int) -> int:
        self.edges[here].append(Step(reads, to))
        return to

    def _chain(self, items: Iterable[tuple[Any, Any]], at: int) -> int:
        for op, value in items:
            at = self._one(op, value, at)
        return at

    def _one(self, op: Any, value: Any, at: int) -> int:
        if op is sre.SUBPATTERN:
            return self._chain(value[3], at)
        if op is sre.BRANCH:
            end = self._new()
            for branch in value[1]:
                self._link(self._chain(branch, self._link(at, None, self._new())), None, end)
            return end
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, body = value
            for _ in range(least):
                at = self._chain(body, at)
            if most == sre.MAXREPEAT or most > MOST:
                at = self._link(at, None, self._new())
                self._link(self._chain(body, at), None, at)
                return at
            ends = [at]
            for _ in range(most - least):
                at = self._chain(body, at)
                ends.append(at)
            end = self._new()
            for each in ends:
                self._link(each, None, end)
            return end
        if op is sre.AT:
            return self._link(at, END if value in (sre.AT_END, sre.AT_END_STRING) else None, self._new())
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            return at
        return self._link(at, (op, value), self._new())


def _reads(step: tuple[Any, Any], char: str) -> bool:
    op, value = step
    if op is sre.LITERAL:
        return bool(ord(char) == value)
    if op is sre.NOT_LITERAL:
        return bool(ord(char) != value)
    if op is sre.ANY:
        return char != "\n"
    negated = value[0][0] is sre.NEGATE
    return any(_member(member, char) for member in value[negated:]) is not negated


def _member(member: tuple[Any, Any], char: str) -> bool:
    op, value = member
    if op is sre.LITERAL:
        return bool(ord(char) == value)
    if op is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    return _CLASSES[value](char)


@cache
def automaton(pattern: str) -> Automaton:
    return Automaton(pattern)


class Text(NamedTuple):
    """A template as cells: a character, or "" for a hole. `skips`: (begin, end) of each optional part."""

    cells: tuple[str, ...]
    skips: tuple[tuple[int, int], ...]


@cache
def text(template: str) -> Text:
    cells: list[str] = []
    skips: list[tuple[int, int]] = []
    opened: list[int] = []
    for part in _PARTS.split(template):
        if part == "⟨":
            opened.append(len(cells))
        elif part == "⟩" and opened:
            skips.append((opened.pop(), len(cells)))
        else:
            cells += [""] if part == HOLE else list(part)
    return Text(tuple(cells), tuple(skips))


def cost(pattern: str, template: str, most: int = 0) -> int | None:
    """How many letters of the pattern only a hole of the template could match; None if over `most` or nothing fits."""
    return _cost(automaton(pattern), text(template), most)


def _cost(pattern: Automaton, written: Text, most: int) -> int | None:
    heap = [(0, 0, 0)]
    done: set[tuple[int, int]] = set()
    while heap:
        paid, state, at = heappop(heap)
        if state == pattern.final:
            return paid
        if (state, at) in done:
            continue
        done.add((state, at))
        for more, to, behind in _moves(pattern.edges[state], written, state, at):
            if paid + more <= most and (to, behind) not in done:
                heappush(heap, (paid + more, to, behind))
    return None


def _moves(edges: list[Step], written: Text, state: int, at: int) -> Iterator[tuple[int, int, int]]:
    """(cost, next state, next cell) of every possible step."""
    cell = written.cells[at] if at < len(written.cells) else None
    if cell == "":
        yield 0, state, at + 1
    for begin, end in written.skips:
        if begin == at and end > at:
            yield 0, state, end
    for reads, to in edges:
        if reads is None:
            yield 0, to, at
        elif reads is END:
            if cell is None:
                yield 0, to, at
        elif cell == "":
            op, value = reads
            yield int(op is sre.LITERAL and chr(value).isalpha()), to, at
        elif cell is not None and _reads(reads, cell):
            yield 0, to, at + 1


class Written(NamedTuple):
    """A template and the releases that have it, as indices into the list of releases."""

    template: str
    levels: frozenset[str]
    releases: frozenset[int]


# Lines that end with the text of an exception.
WRAPS = (" with exception {}", "[http_server] Error: {}")
# What a text of this level may be: a line of its own, the reason in another line or a traceback, or either.
KINDS = {"raise": ("reason",), "returned": ("line", "reason"), "passed": ("line", "reason")}
ALIKE = 8  # common leading letters that make a template worth comparing
WRAPPED = "KVTransferError(bootstrap_room={}): "
RAISED = re.compile(r"[A-Z]\w*(?:Error|Exception): ")


class Templates:
    """All templates of a package, searchable by their first letters or by words in them."""

    def __init__(self, lines: Iterable[tuple[str, str, frozenset[int]]]) -> None:
        """`lines`: (template, level, releases)."""
        held: dict[tuple[str, str], tuple[set[str], set[int]]] = {}
        for template, level, releases in lines:
            for kind in KINDS.get(level, ("line",)):
                levels, among = held.setdefault((template, kind), (set(), set()))
                levels.add(level)
                among |= releases
        self._lines = [
            Written(template, frozenset(levels), frozenset(among))
            for (template, kind), (levels, among) in held.items() if kind == "line"
        ]  # fmt: skip
        raised = [
            Written(template, frozenset(levels), frozenset(among))
            for (template, kind), (levels, among) in held.items() if kind == "reason"
        ]  # fmt: skip
        # By the text before the first hole: thousands of templates have a few hundred beginnings.
        self._reasons: dict[str, list[tuple[Written, str, bool]]] = {}
        self._texts: dict[str, list[tuple[Written, str, bool]]] = {}
        for texts, each in ((self._reasons, raised), (self._texts, self._lines)):
            for one in each:
                texts.setdefault(_begin(one.template), []).append((one, _fixed(one.template), True))
        for outer in filter(None, map(self._unfold, self._lines)):
            head = outer.template[: -len(HOLE)]
            leads = ("", WRAPPED) if outer.template.endswith(WRAPS[0]) else ("",)
            for inner in raised:
                both = outer.releases & inner.releases
                for lead_in in leads if both else ():
                    whole = Written(head + lead_in + inner.template, outer.levels, both)
                    # Searchable by the words of the exception: the outer line is already found by its own words.
                    self._texts.setdefault(_begin(head), []).append((whole, _fixed(inner.template), False))

    @staticmethod
    def _unfold(one: Written) -> Written | None:
        """The beginning of a line that ends with an exception's text, up to that text; None for any other line."""
        plain = one.template.replace("⟨", "").replace("⟩", "")
        wrap = next((each for each in WRAPS if each in plain), "")
        return Written(plain[: plain.index(wrap) + len(wrap)], one.levels, one.releases) if wrap else None

    def fits(self, pattern: str, literal: str, inside: int = 0) -> list[Written]:
        """The templates that may be lines of this row. `inside`: letters of the pattern that may be in a value."""
        raised = RAISED.match(pattern)
        pattern = pattern if raised is None else pattern[raised.end() :]
        opening = lead(pattern).decode("utf-8", "replace")
        words = literal.strip()
        out: list[Written] = []
        for begin, alike in (self._texts if raised is None else self._reasons).items():
            if not (begin.startswith(opening) or opening.startswith(begin)):
                continue
            for one, fixed, own in alike:
                if words not in fixed and (not own or min(len(begin), len(opening)) < ALIKE):
                    continue
                if cost(pattern, one.template, inside) is not None:
                    out.append(one)
        return out


def _fixed(template: str) -> str:
    return template.replace("⟨", "").replace("⟩", "").replace(HOLE, "\0")


def _begin(template: str) -> str:
    """The text before the first hole or optional part."""
    return _PARTS.split(template, maxsplit=1)[0]
