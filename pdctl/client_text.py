"""What a client sent, where our processes write it down: which rids are taken, and how any text stands in a log.

A log line begins with our head and nothing else, and what a client chose can neither end it, nor look like another
line's stamp, nor like a field of its own: a reader of the log, person or program, is told nothing by a stranger.
"""

from __future__ import annotations

import re
import traceback

MAX_RID_CHARS = 256
MAX_SHOWN = 400  # characters of a path in a line of a log
# A rid stands in log lines without quotes and in `rid='…'`: it holds nothing that could end either, or begin a stamp.
_NOT_IN_RID = re.compile(r"""[\s'"`\\()\[\]{}<>]""")
RID_RULE = f"rid must be 1 to {MAX_RID_CHARS} printable characters without spaces, quotes, brackets and backslashes"
_STAMP = re.compile(r"\[(?=[0-9]{2,4}[-:])")
_PLAIN = re.compile(r"[ -Z\\-~]*")  # ASCII without `[`: nearly every line


def rid_problem(rid: str) -> str:
    """What is wrong with a client's rid, for its 400; "" when nothing is."""
    if not rid or len(rid) > MAX_RID_CHARS or not rid.isprintable() or _NOT_IN_RID.search(rid):
        return f"{RID_RULE}, got {rid[:64]!r}"
    return ""


def escaped(text: str) -> str:
    """One line that shows what it holds: control, format and surrogate characters as \\xNN, \\uNNNN or \\UNNNNNNNN.

    So is the bracket of what looks like a line's stamp.
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _code(char) for char in text)
    return _STAMP.sub(r"\\x5b", text)


def word(text: str) -> str:
    """`escaped`, and without a space or a quote: one value of a line whose fields end at spaces."""
    return re.sub(r"""[\s'"]""", lambda found: _code(found[0]), escaped(text))


def cut(text: str) -> str:
    """No more of it than a line of a log needs, and how long it is."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def traceback_text(error: BaseException) -> str:
    """As Python prints it, but that an exception's own text, which may quote a client, stays one line."""
    lines: list[str] = []
    for entry in traceback.format_exception(error):
        if entry[:1] in (" ", "\n") or entry.startswith("Traceback "):
            lines += map(escaped, entry.rstrip("\n").split("\n"))
        else:
            lines.append(escaped(entry.rstrip("\n")))
    return "\n".join(lines)


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _code(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
