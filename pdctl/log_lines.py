"""How pdctl's processes write logs: which request ids they accept, how text is escaped, what a full disk costs."""

from __future__ import annotations

import os
import re
import time
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


FAILED = "%Y-%m-%d %H:%M:%S"


def stamp() -> str:
    """Now, as sglang writes it with SGLANG_LOG_MS: local time, in milliseconds, which order the lines of two logs."""
    now = time.time()
    return f"{time.strftime(FAILED, time.localtime(now))}.{int(now % 1 * 1000):03d}"


class LogStream:
    """Writes whole lines to a file descriptor and never raises: a full disk must not stop the process that logs.

    Not safe for several threads without a lock around it (logging's handlers hold one).
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lost = 0  # lines
        self._since = 0.0
        self._why = ""

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if self._lost:
            data = self._told().encode() + data
        try:
            self._put(data)
        except OSError as error:
            self._since = self._since or time.time()
            self._why = error.strerror or str(error)
            self._lost += max(text.count("\n"), 1)
        else:
            self._lost, self._since = 0, 0.0
        return len(text)

    def flush(self) -> None:
        """Do nothing: every line is written at once."""

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _told(self) -> str:
        """Report the losses on a line of their own, behind the half line that a full disk may have left."""
        since = time.strftime(FAILED, time.localtime(self._since))
        lines = f"{self._lost} line{'s' if self._lost > 1 else ''} of this log"
        return f"\n[{stamp()}] WARNING {lines} could not be written since {since}: {self._why}\n"
