"""Lines of which a part is missing: written halfway when a disk was full, cut by a collector, overwritten by garbage.

A line lost whole leaves nothing to see; one that was cut shows that its log is not complete, and that others may be
missing, too.
"""

from __future__ import annotations

import re

from pdctl.engines.prefix import cut

# The time a line begins with, as far as it was written: `20`, `2026-11`, `[2026-11-22 20:0`.
_HEAD = re.compile(rb"\[?20(?:\d{1,2}(?:-(?:\d{1,2}(?:-(?:\d{1,2}(?:[T ][\d:.,]{0,15})?)?)?)?)?)?")
_STYLE = re.compile(rb"\x1b\[([0-9;]{0,12})m")
_CUT_STYLE = re.compile(rb"\x1b(?:\[[0-9;]{0,12})?$")
_PAIRS = ((b"(", b")"), (b"[", b"]"), (b"{", b"}"))


def torn(line: bytes) -> bool:
    """Whether a part of the line is missing: a style, a bracket or a quote is not closed, its time is not all there.

    False does not say that the line is whole. A line of no known layout is torn only where it is the beginning of a
    stamp or no text: what a process prints on several lines, or a page wraps, is whole.
    """
    if b"\x00" in line or b"\xef\xbf\xbd" in line or not _is_text(line):
        return True
    styles = _STYLE.findall(line)
    if _CUT_STYLE.search(line) or (styles and styles[-1].strip(b"0")):
        return True
    parts = cut(line)
    if parts.layout is None:
        plain = _STYLE.sub(b"", line).strip()
        return bool(_HEAD.fullmatch(plain)) or (plain.startswith(b'{"') and not plain.endswith(b"}"))
    text = parts.line  # without what a collector writes around it
    if not text[parts.at :].strip() or text.count(b'"') % 2:
        return True
    return any(text.count(left) != text.count(right) for left, right in _PAIRS)


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
