"""Lines of two processes that share a file without care: one's begins in the middle of the other's.

A second time stamp alone proves nothing: a client may have written it, in its rid, its prompt or its headers, and what
stands behind it would be believed as a line of the engine. So a line is cut only where no client's text can stand.
"""

from __future__ import annotations

import re
from itertools import pairwise

from pdctl.engines.prefix import SGLANG, Stamp, cut, split

_SECOND = re.compile(rb"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?: [A-Z_]{2,7}\d{1,6}){0,6}\] ")
_MARK = b"\xef\xbb\xbf"
APART = 5  # seconds at most between two lines that were written into each other
# A value in quotes, as repr, JSON and Rust's Debug write it: a quote of the same kind inside it is escaped. An
# apostrophe within a word opens nothing. Where no quote ends it, the text ends in it: found so without a second look.
_QUOTED = re.compile(
    rb"""(?<![0-9A-Za-z])(?:'(?:[^'\\]|\\.)*\\?(?P<one>'|\Z)|"(?:[^"\\]|\\.)*\\?(?P<two>"|\Z))|(?P<odd>["`])""",
    re.DOTALL,
)
_BRACKETED = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_NESTED = 16  # brackets in brackets
# Words behind which sglang 0.5.3 to 0.5.23 writes a client's text without quotes: `Req RID …`, `request RID`, `for
# RID`, the text of an exception, a model's name, a body.
_CLIENTS = re.compile(
    rb"(?i)(?<![a-z])(?:rids?|req|requests?|abort\w*|for(?! \d)|models?|lora\w*|adapters?|tools?|functions?|texts?"
    rb"|prompts?|body|paths?|ur[il]s?|headers?|cookie|errors?|exceptions?|fail\w*|invalid|unknown|unexpected|users?"
    rb"|obj|input_\w+|names?|messages?|templates?|schemas?|grammars?|regex|json|reasons?|got|received?|object"
    rb"|sessions?|keys?|values?|params?|parameters?|parsers?|parsing|images?|files?|warning|id)(?![a-z])(?!='')"
)


def pieces(line: bytes) -> list[tuple[int, bytes]]:
    """The line, or the lines that were glued together in it, each with its offset."""
    if line.startswith(_MARK):
        return [(start and start + len(_MARK), text) for start, text in pieces(line[len(_MARK) :])]
    if line.count(b"[20") < 2:  # nearly always
        return [(0, line)]
    cuts = [0]
    for match in _SECOND.finditer(line, 1):
        if not _glued(line[cuts[-1] : match.start()], match[0]):
            break  # nor behind it: all the rest is the same client's
        cuts.append(match.start())
    return [(start, line[start:end]) for start, end in pairwise([*cuts, len(line)]) if end > start]


def _glued(before: bytes, head: bytes) -> bool:
    """Whether a process may have begun its line with `head` behind `before`, and no client can have written it."""
    parts = cut(before)
    first, second = split(before).stamp, split(head).stamp
    if parts.layout is None or parts.layout.re is not SGLANG or first is None or second is None:
        return False
    if first.resolution_s != second.resolution_s or abs(_seconds(first) - _seconds(second)) > APART:
        return False
    text = parts.line[parts.at :]
    if any(found["odd"] or not (found["one"] or found["two"]) for found in _QUOTED.finditer(text)):
        return False
    text = _QUOTED.sub(b"''", text)
    for _ in range(_NESTED):
        text, found = _BRACKETED.subn(b"", text)
        if not found:
            break
    return not any(bracket in text for bracket in b"()[]{}") and _CLIENTS.search(text) is None


def _seconds(stamp: Stamp) -> float:
    """On a scale of its own, for stamps that are not far from each other: every month has 31 days."""
    days = (stamp.year * 12 + stamp.month) * 31 + stamp.day
    return ((days * 24 + stamp.hour) * 60 + stamp.minute) * 60 + stamp.second + stamp.micro / 1e6
