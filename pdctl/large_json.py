"""Large JSON bodies: the threads that read them, and where an object's members begin and end, found piece by piece.

A parser takes the whole body at once, holds the interpreter lock all the while (0.6 s for 100 MB) and builds objects of
many times its size. This looks at 16 KiB at a time, so that other threads run in between, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import orjson

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set


T = TypeVar("T")

LARGE = 256 << 10  # bytes; a body of this size or more is read in a thread
READERS = 2  # bodies read at once
MAX_WAITING = 64  # bodies waiting for a reader
PIECE = 16 << 10  # bytes one match may look at: the interpreter lock is released in between
MAX_DEPTH = 1000  # orjson's is 1024
MAX_MEMBERS = 4096
PATIENCE = 10.0  # seconds of CPU time per body; 100 MB of text take 0.1

_space = re.compile(rb"[ \t\n\r]*")
_scalar = re.compile(rb'[^"\[\]{},: \t\n\r]+')
# What stands between two brackets: numbers, commas, and strings that end within the piece.
_plain = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*")+', re.DOTALL)
_whole_string = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_string_or_comma = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|,', re.DOTALL)
_text = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class BadBody(Exception):
    """A body that cannot be read; the text says where and why."""


class Busy(Exception):
    """Too many large bodies are being read already."""


class LargeBodyReader:
    """Reads large bodies in threads, a few at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="large body")
        self._waiting = 0

    async def read(self, read: Callable[..., T], *args: object) -> T:
        """Call `read(*args)` in a thread. Raise Busy if too many bodies wait already, and whatever `read` raises."""
        if self._waiting >= MAX_WAITING + READERS:
            raise Busy
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, *args)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class JsonSpan(NamedTuple):
    """Where a member of the outermost object stands and, if it is a list, how many items it has."""

    start: int
    end: int
    items: int = 0


COUNTED = frozenset(("text", "input_ids", "input_embeds", "prompt"))


class Scan:
    """One pass over the outermost object.

    `starts` and `ends`: the bounds of each member, its key included. `counted`: members whose items are counted.
    """

    def __init__(self, raw: bytes | bytearray, counted: Set[str] = COUNTED) -> None:
        self._raw, self._counted = raw, counted
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._give_up = time.thread_time() + PATIENCE

    def members(self) -> list[tuple[str, JsonSpan]]:
        """The members in order. Raise BadBody if the body is not an object, or is cut off."""
        raw, found = self._raw, []
        at = after_space(raw, 0)
        if raw[at : at + 1] != b"{":
            raise BadBody("the body is no JSON object")
        at = after_space(raw, at + 1)
        if raw[at : at + 1] == b"}":
            self._expect_end(at + 1)
            return []
        while True:
            key_end = self.string(at)
            name = _key(raw, at, key_end)
            self._expect(b":", at_colon := after_space(raw, key_end))
            value = self.value(after_space(raw, at_colon + 1), name in self._counted)
            found.append((name, value))
            if len(found) > MAX_MEMBERS:
                raise BadBody(f"the outermost object has more than {MAX_MEMBERS} members")
            self.starts.append(at)
            self.ends.append(value.end)
            at = after_space(raw, value.end)
            if raw[at : at + 1] == b"}":
                self._expect_end(at + 1)
                return found
            self._expect(b",", at)
            at = after_space(raw, at + 1)

    def _expect_end(self, at: int) -> None:
        if after_space(self._raw, at) != len(self._raw):
            raise BadBody(f"the body is not valid JSON: something follows the object at byte {at}")

    def _expect(self, wanted: bytes, at: int) -> None:
        if self._raw[at : at + 1] != wanted:
            found = bytes(self._raw[at : at + 1]).decode("latin-1") or "the end"
            raise BadBody(f"the body is not valid JSON: {found!r} at byte {at}, where {wanted.decode()!r} is expected")

    def string(self, at: int) -> int:
        """The end of the string that begins at `at`."""
        raw = self._raw
        self._expect(b'"', at)
        at += 1
        while True:
            match = _text.match(raw, at, at + PIECE)
            at = match.end() if match else at
            following = raw[at : at + 1]
            if following == b'"':
                return at + 1
            if not following or (following == b"\\" and len(raw) < at + 2):
                raise BadBody("the body is not valid JSON: a string has no end")
            self._check_time()

    def value(self, at: int, counted: bool) -> JsonSpan:
        first = self._raw[at : at + 1]
        if first == b'"':
            return JsonSpan(at, self.string(at))
        if first in (b"[", b"{"):
            return self._nested(at, counted)
        match = _scalar.match(self._raw, at, at + PIECE)
        if match is None:
            raise BadBody(f"the body is not valid JSON: no value at byte {at}")
        if match.end() - at == PIECE:
            raise BadBody(f"the body is not valid JSON: a number at byte {at} has no end")
        return JsonSpan(at, match.end())

    def _nested(self, start: int, counted: bool) -> JsonSpan:
        """A list or an object: its end by its brackets; what else is in it is not looked at.

        `counted`: how many items it has is asked for; else there is one, or none.
        """
        raw, at = self._raw, start
        open_brackets = bytearray()
        commas, content, steps = 0, False, 0
        while True:
            following = bytes(raw[at : at + 1])
            if following in OPENS:
                open_brackets += following
                if len(open_brackets) > MAX_DEPTH:
                    raise BadBody("the body is nested too deeply")
                content = content or len(open_brackets) > 1
                at += 1
            elif following in CLOSES:
                if open_brackets[-1:] != CLOSES[following]:
                    raise BadBody(f"the body is not valid JSON: {following.decode()!r} at byte {at} closes nothing")
                del open_brackets[-1:]
                at += 1
                if not open_brackets:
                    return JsonSpan(start, at, commas + 1 if content else 0)
            else:
                match = _plain.match(raw, at, at + PIECE)
                if match is None and following != b'"':
                    raise BadBody("the body is not valid JSON: a list or an object has no end")
                if match is None:  # a string longer than a piece
                    at, content = self.string(at), True
                elif len(open_brackets) == 1 and (counted or not content):
                    run = match.group()
                    commas += 0 if not counted else _whole_string.sub(b"", run).count(b",")
                    content = content or bool(run.strip())
                    at = match.end()
                else:
                    at = match.end()
            steps += 1
            if not steps & 0xFFF:
                self._check_time()

    def _check_time(self) -> None:
        if time.thread_time() > self._give_up:
            raise BadBody(f"the body takes more than {PATIENCE:g} s to read")


def has_more_commas(raw: bytes, most: int) -> bool:
    """Whether more than `most` commas stand outside the strings of `raw`: each of them is one value more to be made."""
    if raw.count(b",") <= most:
        return False
    commas = (match for match in _string_or_comma.finditer(raw) if match.group() == b",")
    return next(islice(commas, most, None), None) is not None


OPENS = (b"[", b"{")
CLOSES: Mapping[bytes, bytes] = {b"]": b"[", b"}": b"{"}


def after_space(raw: bytes | bytearray, at: int) -> int:
    while True:
        match = _space.match(raw, at, at + PIECE)
        end = match.end() if match else at
        if end - at < PIECE:
            return end
        at = end


def _key(raw: bytes | bytearray, start: int, end: int) -> str:
    if end - start > PIECE:
        raise BadBody(f"a name of {end - start} bytes")
    try:
        return str(orjson.loads(raw[start:end]))
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: the name at byte {start}: {error}") from None
