"""What is searched for as bytes: a room in decimal or hex, a request id; and which neighbours make it another thing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engines.row import Row

LONGEST = 512  # bytes; block.OVERLAP leaves room for it and its neighbours
_DIGITS = b"0123456789"
_WORD = _DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_LONG = 9  # digits from which a number is unlikely to mean anything but a room
# `room=7`, `"bootstrap_room": 7`, `room 7`: what a short room must follow, beside what the dialect's rows say.
_ANCHORS = (b"room=", b"room ", b"room: ", b'room":', b'room": ', b"room='")


class Needle(NamedTuple):
    """`text` with none of `apart` before or after it; before it, `prefix` is welcome all the same ("0x")."""

    text: bytes
    apart: bytes = b""
    prefix: bytes = b""

    def stands(self, data: bytearray | bytes, at: int, start: int, end: int) -> bool:
        """Whether the occurrence at `at` is one in its own right; start and end bound what may be looked at."""
        behind = at + len(self.text)
        if behind < end and data[behind] in self.apart:
            return False
        if at <= start or data[at - 1] not in self.apart:
            return True
        before = at - len(self.prefix)
        return bool(self.prefix) and before >= start and data[before:at] == self.prefix

    def among(self, text: bytes) -> bool:
        """Whether `text`, one line, holds it."""
        at = text.find(self.text)
        while at >= 0:
            if self.stands(text, at, 0, len(text)):
                return True
            at = text.find(self.text, at + 1)
        return False


def of(text: bytes) -> Needle:
    """A number stands apart from digits; anything else is found wherever it stands."""
    return Needle(text, _DIGITS if text.isdigit() else b"")


def room(number: int, rows: Iterable[Row] = ()) -> tuple[Needle, ...]:
    """Decimal. A short number is a room only behind words that announce one: `rows` say which, beside the usual."""
    text = b"%d" % number
    if len(text) >= _LONG:
        return (Needle(text, _DIGITS),)
    anchors = dict.fromkeys((*_ANCHORS, *filter(None, (announced(row.pattern) for row in rows))))
    shortest = [each for each in anchors if not any(each != other and each.endswith(other) for other in anchors)]
    # The left neighbour belongs to the anchor: nothing before it matters.
    return tuple(Needle(anchor + text, _DIGITS) for anchor in shortest)


def hexadecimal(number: int) -> tuple[Needle, ...]:
    """As OTLP spans have it: `0x1dcf…`; without the 0x where it can be told from a decimal number."""
    digits = b"%x" % number
    if len(digits) >= _LONG and not digits.isdigit():
        return (Needle(digits, _WORD, b"0x"),)
    return (Needle(b"0x" + digits, _WORD),)


def findable(rid: str) -> bool:
    """Whether `request` takes it: a mangled line may give a request an id of thousands of characters."""
    text = rid.encode()
    return 0 < len(text) <= LONGEST and b"\n" not in text


def request(rid: str) -> tuple[Needle, ...]:
    text = rid.encode()
    if not findable(rid):
        raise UsageError("--rid is empty, too long or not one line", f"give 1 to {LONGEST} bytes")
    return (Needle(text, _WORD + b"-"),)


_LETTERS = 3  # fewer announce anything
_ROOM_GROUP = re.compile(r"(?<!\?)((?:[A-Za-z_ :=\"']|\\[ .(=:])+)\(\?P<room>")


def announced(pattern: str) -> bytes:
    """The words in front of a row's room: `Request ` of `Request (?P<room>\\d+) waiting_timeout`; empty without any."""
    found = _ROOM_GROUP.search(pattern)
    text = found[1].replace("\\", "").encode()[-16:] if found else b""
    return text if sum(map(str.isalpha, text.decode())) >= _LETTERS else b""
