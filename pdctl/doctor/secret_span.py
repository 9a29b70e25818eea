"""Places of a text that go, and how the value that begins at a place is read: quotes, brackets, YAML blocks."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

GONE = "[redacted]"
AUTHORIZATION, URL, FLAG, FIELD = "authorization header", "password in a URL", "key flag", "key variable or field"
FORM, PRIVATE, HASH, ENCODED = "known key form", "private key", "password hash", "encoded secret"
RANDOM, VARIABLE, AGAIN = "random string", "environment variable", "a secret found elsewhere"
PROMPT, TOKENS = "prompt or answer", "token ids"
LONGEST = 1 << 16  # characters of one secret
DEEPEST = 8  # brackets within brackets behind a name

ESCAPED = r"\\{0,8}"
QUOTE = re.compile(rf"(?:\w{{1,24}}\()?[bBrRfFuU]{{0,2}}(?P<quote>{ESCAPED}(?:\"\"\"|'''|[\"'`]))")
BLOCK = re.compile(r"[|>][+-]?\d?[ \t]*(?:#.*)?\n")
_HARMLESS = re.compile(
    r"(?i)(?:none|null|nil|~|true|false|yes|no|on|off|unset|empty|required|optional|missing|invalid|unauthorized|"
    r"\*+|x{3,}|<[^<>]*>|\$\{?[A-Z_][A-Z0-9_]*\}?|\$\{[^}]*\}|\$\([^)]*\)?|\{\{.*\}\}|\(?hidden\)?|\[?redacted\]?|\.\.\.|…|%s|\{\w*\}|[A-Za-z_]+\()"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TURNS = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")


class Span(NamedTuple):
    """text[start:end] goes, `instead` stands there afterwards; `rule` names why."""

    start: int
    end: int
    rule: str
    instead: str = GONE


class Found(NamedTuple):
    """What was taken out: how often by rule, and the values that a name gave away."""

    text: str
    taken: Counter[str]
    values: frozenset[str]


def closing(text: str, begin: int, quote: str) -> int | None:
    """Where the quoted text that begins at `begin` ends; an escaped quote does not end it."""
    at, limit = begin, min(len(text), begin + LONGEST)
    escapes = len(quote) - len(quote.lstrip("\\"))
    mark = quote.lstrip("\\")
    while (at := text.find(mark, at, limit)) >= 0:
        slashes = 0
        while at - slashes - 1 >= begin and text[at - slashes - 1] == "\\":
            slashes += 1
        if (slashes <= escapes and (escapes or not slashes % 2)) or (not escapes and slashes % 2 == 0):
            return at - min(slashes, escapes)
        at += len(mark)
    return None


def unless_harmless(text: str, start: int, end: int, rule: str, strong: bool, quote: str) -> Iterator[Span]:
    value = text[start:end]
    bare = value.strip()
    if not bare or GONE in bare or _HARMLESS.fullmatch(bare) or (bare.startswith("$") and _HARMLESS.match(bare + "}")):
        return
    if _NUMBER.fullmatch(bare) and (not strong or len(bare) < 6):
        return
    if not strong and bare.startswith(("/", "./", "~/")) and not looks_secret(bare):
        return
    yield Span(start, end, rule, GONE + quote)


def listed(text: str, at: int, rule: str) -> Iterator[Span]:
    """Every quoted text of a list or mapping behind a name, up to its closing bracket; none of a nested one's names."""
    depth, limit = 0, min(len(text), at + LONGEST)
    quoted = re.compile(r"[\"']|[\[\](){}]")
    while at < limit and (found := quoted.search(text, at, limit)) is not None:
        at = found.end()
        mark = found.group()
        if mark in "[({":
            depth += 1
            if depth > DEEPEST:
                return
        elif mark in "])}":
            depth -= 1
            if depth <= 0:
                return
        else:
            close = closing(text, at, mark)
            if close is None:
                return
            is_name = text[close + 1 : close + 24].lstrip().startswith(":")
            if not is_name:
                yield from unless_harmless(text, at, close, rule, True, "")
            at = close + 1


def block_scalar(text: str, line: int, at: int, rule: str) -> Iterator[Span]:
    """A YAML block scalar: the lines deeper than the one that opens it."""
    opened = BLOCK.match(text, at)
    if opened is None:
        return
    indent = len(text[line:at]) - len(text[line:at].lstrip(" -"))
    end = opened.end()
    first = end
    while end < len(text):
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        content = text[end:stop]
        if content.strip() and len(content) - len(content.lstrip(" ")) <= indent:
            break
        end = stop + 1
    last = min(end, len(text))
    inner = text[first:last].rstrip()
    if inner and inner.strip() != GONE:
        lead = len(inner) - len(inner.lstrip(" \n"))
        yield Span(first + lead, first + len(inner), rule)


def end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def looks_secret(value: str) -> bool:
    """Letters and digits as nobody would write them: at least 8, or long and without an end to the mixture."""
    letters = any(letter.isalpha() for letter in value)
    digits = any(letter.isdigit() for letter in value)
    return (letters and digits and len(value) >= 8 and not re.search(r"[:/@]|^\d+[A-Za-z]{1,3}$", value)) or is_random(
        value
    )


def is_random(run: str) -> bool:
    """Base64 of random bytes. Model names and paths have separators, and words in them."""
    if len(run) < 32 or len(re.findall(r"[_/-]", run)) > 0.1 * len(run):
        return False
    kinds = (re.search(r"[A-Z]", run), re.search(r"[a-z]", run), re.search(r"\d", run))
    if None in kinds or len(_TURNS.findall(run)) < 0.35 * len(run):
        return False
    counts = Counter(run)
    return -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values()) > 3.8
