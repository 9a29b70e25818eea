"""A router's list of workers that stands on several lines: pretty-printed, or wrapped by a terminal or a page.

`Starting router on … | mode: PrefillDecode { prefill_urls: [("http://…", None), …], decode_urls: […], … }` of
sglang-router 0.3.x and smg, and `Prefill nodes: [("http://…", None), …]`, `Decode nodes: […]`, which their binaries
print before it, are one line each as they are written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.prefix import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES, BYTES = 256, 1 << 16  # a list that takes more is no list
_OPENINGS = (b"prefill_urls", b"PrefillDecode {", b"Starting router on ", b"Prefill nodes:", b"Decode nodes:")
_NARROWEST = 40  # columns of a terminal that breaks lines
_LISTS = re.compile(rb"((?:prefill_urls|decode_urls|(?:Prefill|Decode) nodes) ?: ?\[)([^\]]*)(?=\]|$)")
_SPELLINGS = (
    (re.compile(rb"\s+"), b" "),
    (re.compile(rb"PrefillDecode ?\{ ?"), b"PrefillDecode { "),
    (re.compile(rb"((?:prefill_urls|decode_urls|(?:Prefill|Decode) nodes)) ?: ?\["), rb"\1: ["),
    (re.compile(rb"\] ?, ?decode_urls"), b"], decode_urls"),
)


def opens(line: bytes) -> bool:
    """Whether the line begins a router's list of workers and does not end it."""
    # Every line of a log is asked this, and few have one of the three.
    if b"refill" not in line and b" nodes:" not in line and b"Starting router on " not in line:
        return False
    return any(opening in line for opening in _OPENINGS) and not _complete(*_brackets(line), line)


def join(lines: Sequence[bytes]) -> tuple[bytes, int]:
    """One line of the first, which `opens`, and as many others as the list takes; and how many it was made of."""
    taken = [lines[0].rstrip(b"\r\n")]
    size = len(taken[0])
    opened, closed = _brackets(taken[0])
    for line in lines[1:LINES]:
        parts = cut(line)
        size += len(line)
        again = any(opening in line and any(opening in one for one in taken) for opening in _OPENINGS)
        if parts.layout is not None or again or not line.strip() or size > BYTES:
            break
        # What a collector writes in front of every line is taken off.
        taken.append(parts.line[parts.at :])
        opened, closed = opened + _brackets(taken[-1])[0], closed + _brackets(taken[-1])[1]
        if _complete(opened, closed, taken[-1]):
            break
    text = _joined(taken) if len(taken) > 1 else lines[0]
    return (text, len(taken)) if b"http" in text else (lines[0], 1)


def _brackets(text: bytes) -> tuple[int, int]:
    return sum(map(text.count, (b"[", b"{", b"("))), sum(map(text.count, (b"]", b"}", b")")))


def _complete(opened: int, closed: int, last: bytes) -> bool:
    """Every bracket is closed, and no list of decodes is to come."""
    return 0 < opened <= closed and not last.rstrip().endswith(b",")


def _joined(lines: Sequence[bytes]) -> bytes:
    """A terminal breaks a line anywhere, at one width; all others break it where a space may stand."""
    widths = {len(line) for line in lines[:-1]}
    broken = len(widths) == 1 and max(widths) >= _NARROWEST and len(lines[-1]) <= max(widths)
    text = (b"" if broken else b" ").join(line if broken else line.strip() for line in lines[1:])
    text = lines[0].rstrip() + (b"" if broken and lines[0] == lines[0].rstrip() else b" ") + text
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return _LISTS.sub(lambda found: found[1] + _tight(found[2]), text)


def _tight(listed: bytes) -> bytes:
    """The entries of a list as a router writes them: no space but behind a comma."""
    return re.sub(rb"(?<=[\"')]),(?=.)", b", ", re.sub(rb"\s", b"", listed))
