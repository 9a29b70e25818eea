"""The rules for a row's pattern, so that no line can make it slow and its literal is in every line it matches.

Used by the test of the shipped rows and by the reader of a user's rows. Works on the parsed pattern.
"""

from __future__ import annotations

import re
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any

try:
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as sre
    import sre_parse as parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Every ASCII character, and two for the rest: enough to distinguish character classes.
ALPHABET = frozenset(range(128)) | {0xE9, 0x4E2D}
LONG = 4096  # a repeat of up to this many takes bounded time, wherever it is
GAP = "\0"
MOST = 2000  # expansions examined before a pattern counts as having too many branches

READ = frozenset(
    {
        sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.BRANCH, sre.SUBPATTERN, sre.MAX_REPEAT, sre.MIN_REPEAT,
        sre.AT, sre.ASSERT, sre.ASSERT_NOT,
    }
)  # fmt: skip

Item = tuple[Any, Any]


def weaknesses(pattern: str, literal: bytes) -> list[str]:
    """One sentence for each rule that the pattern breaks; [] if it breaks none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # syntax whose meaning changes in a later Python
            re.compile(pattern)
            items = list(parser.parse(pattern))
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        return [f"it is not a regular expression: {error}"]
    strange = next((op for op in _ops(items) if op not in READ), None)
    if strange is not None:
        return [f"it uses {str(strange).lower()}, which is not read here: write it without"]
    out = []
    if not items or _optional(items[0]):
        out.append("it begins with something that may be missing: begin it with the words of the line")
    out += _slow(items)
    if len(literal) < 4:
        out.append(f"its literal {literal!r} is shorter than 4 bytes")
    elif not all(literal.decode("utf-8", "replace") in run for run in _runs(items)):
        out.append(f"its literal {literal!r} need not stand in a line it matches")
    return out


def _ops(items: Iterable[Item]) -> Iterator[Any]:
    for op, value in items:
        yield op
        if op is sre.SUBPATTERN:
            yield from _ops(value[3])
        elif op is sre.BRANCH:
            yield from (inner for branch in value[1] for inner in _ops(branch))
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            yield from _ops(value[2])
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _ops(value[1])


def _slow(items: list[Item]) -> list[str]:
    """The rules for speed. One repeat may search for its end if nothing after it can search the same text again."""
    items = _flat(items)
    searching = False
    clear: set[int] = set()  # characters that must have been read since the search began
    for at, (op, value) in enumerate(items):
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            out = _slow(list(value[1]))
            if out:
                return out
            continue
        elif op is sre.BRANCH:
            inner = [note for branch in value[1] for note in _slow_inside(list(branch), items[at + 1 :])]
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            inner = _repeat(value, items[at + 1 :])
        else:
            if op is sre.LITERAL:
                clear.add(value)
            continue
        for note in inner:
            if note.startswith("!"):
                return [note[1:]]
            if note == "search":
                if searching:
                    return ["two of its repeats have to search for their end: name what ends one of them"]
                searching, clear = True, set()
            elif searching and note.startswith("read ") and not clear - {int(c) for c in note[5:].split(",") if c}:
                return ["a repeat behind a searching one can read the same text again"]
    return []


def _flat(items: list[Item]) -> list[Item]:
    """`items` without the parentheses of groups that are neither repeated nor branches."""
    return [one for op, value in items for one in (_flat(list(value[3])) if op is sre.SUBPATTERN else [(op, value)])]


def _slow_inside(items: list[Item], behind: list[Item]) -> list[str]:
    notes = []
    for at, (op, value) in enumerate(items):
        rest = items[at + 1 :] + behind
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            notes += _repeat(value, rest)
        elif op is sre.SUBPATTERN:
            notes += _slow_inside(list(value[3]), rest)
        elif op is sre.BRANCH:
            notes += [note for branch in value[1] for note in _slow_inside(list(branch), rest)]
    return notes


def _repeat(value: tuple[int, Any, Any], rest: list[Item]) -> list[str]:
    """The kind of a repeat: "search": it must search for its end; "read a,b": it stops by itself; "!…": bad."""
    _, most, body = value
    inner = list(body)
    if most <= 1:
        return _slow_inside(inner, rest)
    if len(inner) != 1 or inner[0][0] not in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
        if most <= 64 and not any(op in (sre.MAX_REPEAT, sre.MIN_REPEAT) for op, _ in inner):
            return []
        return ["!a repeat of a group may take for ever: repeat a class of characters instead"]
    reads = _chars(inner[0])
    if not rest or _ends(rest):
        return []  # nothing after it can fail
    if most <= LONG and most != sre.MAXREPEAT:
        return []
    if reads & _first(rest):
        return ["search"]
    return ["read " + ",".join(map(str, sorted(reads)))]


def _ends(rest: list[Item]) -> bool:
    """Whether the rest can match the empty text, so that it cannot fail."""
    return all(op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] == 0 for op, value in rest)


def _first(items: list[Item]) -> frozenset[int]:
    out: frozenset[int] = frozenset()
    for item in items:
        op, value = item
        if op is sre.AT or op in (sre.ASSERT, sre.ASSERT_NOT):
            continue
        if op is sre.SUBPATTERN:
            out |= _first(list(value[3]))
        elif op is sre.BRANCH:
            out |= frozenset().union(*(_first(list(branch)) for branch in value[1]))
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            out |= _first(list(value[2]))
        else:
            out |= _chars(item)
        if not _optional(item):
            return out
    return out


def _optional(item: Item) -> bool:
    """Whether it may match without consuming anything."""
    op, value = item
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return bool(value[0] == 0) or all(_optional(one) for one in value[2])
    if op is sre.SUBPATTERN:
        return all(_optional(one) for one in value[3])
    if op is sre.BRANCH:
        return any(all(_optional(one) for one in branch) for branch in value[1])
    return op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT)


def _chars(item: Item) -> frozenset[int]:
    op, value = item
    if op is sre.ANY:
        return ALPHABET - {10}
    if op is sre.LITERAL:
        return frozenset({value})
    if op is sre.NOT_LITERAL:
        return ALPHABET - {value}
    source = "".join(map(chr, sorted(ALPHABET)))
    return frozenset(ord(char) for char in source if _in(value, char))


def _in(members: list[Item], char: str) -> bool:
    negated = members[0][0] is sre.NEGATE
    return any(_member(member, char) for member in members[negated:]) is not negated


def _member(member: Item, char: str) -> bool:
    op, value = member
    if op is sre.LITERAL:
        return bool(ord(char) == value)
    if op is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    classes = {
        sre.CATEGORY_DIGIT: char.isdigit(), sre.CATEGORY_NOT_DIGIT: not char.isdigit(),
        sre.CATEGORY_SPACE: char.isspace(), sre.CATEGORY_NOT_SPACE: not char.isspace(),
        sre.CATEGORY_WORD: char.isalnum() or char == "_",
        sre.CATEGORY_NOT_WORD: not (char.isalnum() or char == "_"),
    }  # fmt: skip
    return classes[value]


def _runs(items: list[Item]) -> list[str]:
    """Every expansion of the pattern, with gaps in place of what is not fixed."""
    ways = [""]
    for op, value in items:
        if op is sre.LITERAL:
            parts = [chr(value)]
        elif op is sre.SUBPATTERN:
            parts = _runs(list(value[3]))
        elif op is sre.BRANCH:
            parts = [run for branch in value[1] for run in _runs(list(branch))]
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, body = value
            inner = _runs(list(body))
            parts = ["", *inner] if (least, most) == (0, 1) else [GAP + run + GAP for run in inner] if least else [GAP]
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            parts = [""]
        else:
            parts = [GAP]
        ways = [head + tail for head, tail in product(ways, parts)][:MOST]
    return ways
