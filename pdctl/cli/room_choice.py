"""Which room is meant: a number as logs or spans write it, a request's id, or what the rooms themselves are like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pdctl.logs.library import Library
    from pdctl.trace.room import Room

HEX = 16  # digits of most rooms as spans write them
ROOM = re.compile(r"(0[xX])?[0-9a-fA-F]+")
# Request ids as engines, routers and the OpenAI surface make them: 32 hex digits, a UUID, `chatcmpl-…`, `gnt-…`.
RID = re.compile(
    r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?:chatcmpl|cmpl|gnt|resp|req|pdctl-canary)[-_][\w.-]{4,128}"
)


class Wanted(NamedTuple):
    """One of the first four is given. typed: the room as it was."""

    room: int | None = None
    rid: str | None = None
    last_failed: bool = False
    slowest: int | None = None
    typed: str = ""

    @property
    def selection(self) -> bool:
        """Chosen by what they are like: there may be several."""
        return self.slowest is not None

    @property
    def named(self) -> bool:
        return self.room is not None or self.rid is not None


def chosen(words: list[str], rid: str | None, last_failed: bool, slowest: int | None) -> tuple[Wanted, list[str]]:
    """The rooms meant, and the words that are paths: all of them where a flag says which room."""
    given = {"--rid": rid is not None, "--last-failed": last_failed, "--slowest": slowest is not None}
    flags = [flag for flag, stands in given.items() if stands]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} choose different rooms", "give one of them")
    if flags:
        return Wanted(None, rid, last_failed, slowest), words
    if not words:
        hint = "give its number, --rid, --last-failed or --slowest 5; `pdctl rooms` lists them"
        raise UsageError("which room?", hint)
    if RID.fullmatch(words[0]):
        return Wanted(None, words[0]), words[1:]
    return Wanted(number(words[0]), typed=words[0]), words[1:]


def number(text: str) -> int:
    """A room as logs (decimal) or OTLP spans (hex) write it; digits alone are decimal."""
    if ROOM.fullmatch(text):
        room = numerals.whole(text) if text.isdigit() else int(text, 16)
        if room is not None and room <= numerals.LARGEST:
            return room
    hint = "write it as 2148025886387619708 or 0x1dcf43f1d9a31f3c; `pdctl rooms` lists them"
    raise UsageError(f"`{text}` is not a room: a number below 2^64, decimal or hex", hint)


def find(library: Library, wanted: Wanted) -> list[Room]:
    """A room asked for by its number comes back even when no line names it; NotFoundError for the other ways."""
    from pdctl.trace import assemble

    if wanted.room is not None:
        return [assemble.trace(library, wanted.room)]
    from pdctl.trace import lookup

    if wanted.rid is not None:
        return [assemble.trace(library, lookup.by_rid(library, wanted.rid))]
    numbers = lookup.slowest(library, wanted.slowest) if wanted.slowest else [lookup.last_failed(library)]
    return [assemble.trace(library, each) for each in numbers]


def unnamed(room: Room, typed: str = "") -> str:
    """That no line names it. typed: the word it was read from."""
    read = f" (`{typed}` read as hex)" if typed and not typed.isdigit() else ""
    return f"no line of these logs names room {room.room}{read}"


def not_found(room: Room, typed: str = "") -> NotFoundError:
    hint = "`pdctl rooms` with the same paths lists the rooms there are"
    if len(str(room.room)) == HEX:
        hint += f"; if it is hex, write 0x{room.room}"
    return NotFoundError(unnamed(room, typed), hint)
