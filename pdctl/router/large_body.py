"""A large request body: read piece by piece beside the event loop, sent on without being copied.

A parser takes the whole body at once, holds the interpreter for as long (0.6 s for 100 MB) and makes objects of many
times its size. What the router has to know is where the members of the outermost object begin and end, and the values
of a few small ones. Whether the rest is valid JSON is left to the engines.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import orjson

from pdctl.router.body import BOOTSTRAP_FIELDS, PROMPT_LIMIT, BadBody, Body, check_bootstrap, check_items, samples_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGE = 256 << 10  # bytes from which a body is read here
PIECE = 16 << 10  # bytes one match may look at: the interpreter is given back in between
MAX_FIELD = 1 << 20  # bytes of a member whose value the router has to know
MAX_DEPTH = 1000  # orjson's is 1024
READERS = 2  # bodies read at the same time
MAX_WAITING = 64  # bodies that wait for that
PATIENCE = 10.0  # seconds of CPU time for one body; 100 MB of text take 0.1

_space = re.compile(rb"[ \t\n\r]*")
_scalar = re.compile(rb'[^"\[\]{},: \t\n\r]+')
# What stands between two brackets: numbers, commas, and strings that end within the piece.
_plain = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*")+', re.DOTALL)
_whole_string = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_text = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_half_escape = re.compile(r"\\u[0-9a-fA-F]{0,3}$")
_blank = re.compile(r"\s+")


class Busy(Exception):
    """Too many large bodies are being read already."""


class Value(NamedTuple):
    """Of a member of the outermost object: where it stands, and of a list, how many items it has."""

    start: int
    end: int
    items: int = 0


class LargeBody(Body):
    """The same as Body for `raw` of any size, but for the validity of what lies deep in it."""

    __slots__ = ("_kept", "_values")

    def __init__(self, path: bytes, raw: bytes | bytearray) -> None:
        scan = Scan(raw)
        members = scan.members()
        self._values: dict[str, Value] = dict(members)
        small = {name: self._small(raw, name) for name in (*BOOTSTRAP_FIELDS, *FIELDS) if name in self._values}
        check_bootstrap(small)
        view = memoryview(raw)
        self._kept = [
            view[start:end]
            for (name, _), start, end in zip(members, scan.starts, scan.ends, strict=True)
            if name not in BOOTSTRAP_FIELDS
        ]
        if len(self._kept) == len(members) and members:
            self._kept = [view[scan.starts[0] : scan.ends[-1]]]  # nothing to leave out: one piece
        self._path, self._raw, self._fields = path, raw, small
        self._end = 0
        self.stream = small.get("stream") is True
        self.logprobs = small.get("return_logprob") is True
        self.samples = samples_of(path, small)
        self.items = check_items(self._batch(path))
        rid = small.get("rid")
        found = rid if isinstance(rid, list) else (rid,)
        self.rids = tuple(one for one in found if isinstance(one, str) and one)

    def _small(self, raw: bytes | bytearray, name: str) -> object:
        start, end, _ = self._values[name]
        if end - start > MAX_FIELD:
            raise BadBody(f"{name}: {end - start} bytes; at most {MAX_FIELD} are taken")
        try:
            return orjson.loads(raw[start:end])
        except orjson.JSONDecodeError as error:
            raise BadBody(f"the body is not valid JSON: {name}: {error}") from None

    def _batch(self, path: bytes) -> int | None:
        """As `items_of` decides it for a parsed body."""
        if path == b"/v1/chat/completions":
            return self.samples if self.samples > 1 else None
        for name in ("text", "input_ids", "input_embeds") if path == b"/generate" else ("prompt",):
            value = self._values.get(name)
            if value is None or not value.items:
                continue
            start = _after_space(self._raw, value.start + 1)
            first = self._raw[start : start + 1]
            if name == "input_embeds":
                inner = _after_space(self._raw, start + 1)
                return value.items if first == b"[" and self._raw[inner : inner + 1] == b"[" else None
            return value.items if first in (b'"', b"[") else None
        return None

    def pieces(self, host: str, port: int | None, rooms: Sequence[int]) -> tuple[bytes | memoryview, ...]:
        """`addressed`, without a copy: what is sent one after the other."""
        sent: list[bytes | memoryview] = [b"{"]
        for part in self._kept:
            sent += (part, b",")
        return (*sent, self.fields(host, port, rooms))

    def addressed(self, host: str, port: int | None, rooms: Sequence[int]) -> bytes:
        return b"".join(self.pieces(host, port, rooms))

    def prompt(self) -> str:
        names = ("messages",) if self._path == b"/v1/chat/completions" else ("text", "prompt", "input_ids")
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            head = bytes(self._raw[value.start : min(value.end, value.start + 12 * PROMPT_LIMIT)])
            if head.startswith(b'"'):
                return _unescaped(head[1:])[:PROMPT_LIMIT]
            if value.items:
                return _blank.sub("", head.decode("utf-8", "replace")).replace(",", ", ")[:PROMPT_LIMIT]
        return ""


COUNTED = frozenset(("text", "input_ids", "input_embeds", "prompt"))
FIELDS = ("stream", "return_logprob", "rid", "n", "sampling_params")


class Scan:
    """One pass over the outermost object. `starts` and `ends`: of each member, its key included."""

    def __init__(self, raw: bytes | bytearray) -> None:
        self._raw = raw
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._give_up = time.thread_time() + PATIENCE

    def members(self) -> list[tuple[str, Value]]:
        """Raise BadBody where the outermost object is none, or is cut off."""
        raw, found = self._raw, []
        at = _after_space(raw, 0)
        if raw[at : at + 1] != b"{":
            raise BadBody("the body is no JSON object")
        at = _after_space(raw, at + 1)
        if raw[at : at + 1] == b"}":
            self._expect_end(at + 1)
            return []
        while True:
            key_end = self._string(at)
            name = _key(raw, at, key_end)
            self._expect(b":", at_colon := _after_space(raw, key_end))
            value = self._value(_after_space(raw, at_colon + 1), name in COUNTED)
            found.append((name, value))
            if len(found) > 4096:
                raise BadBody("the outermost object has more than 4096 members")
            self.starts.append(at)
            self.ends.append(value.end)
            at = _after_space(raw, value.end)
            if raw[at : at + 1] == b"}":
                self._expect_end(at + 1)
                return found
            self._expect(b",", at)
            at = _after_space(raw, at + 1)

    def _expect_end(self, at: int) -> None:
        if _after_space(self._raw, at) != len(self._raw):
            raise BadBody(f"the body is not valid JSON: something follows the object at byte {at}")

    def _expect(self, wanted: bytes, at: int) -> None:
        if self._raw[at : at + 1] != wanted:
            found = bytes(self._raw[at : at + 1]).decode("latin-1") or "the end"
            raise BadBody(f"the body is not valid JSON: {found!r} at byte {at}, where {wanted.decode()!r} is expected")

    def _string(self, at: int) -> int:
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

    def _value(self, at: int, counted: bool) -> Value:
        first = self._raw[at : at + 1]
        if first == b'"':
            return Value(at, self._string(at))
        if first in (b"[", b"{"):
            return self._nested(at, counted)
        match = _scalar.match(self._raw, at, at + PIECE)
        if match is None:
            raise BadBody(f"the body is not valid JSON: no value at byte {at}")
        if match.end() - at == PIECE:
            raise BadBody(f"the body is not valid JSON: a number at byte {at} has no end")
        return Value(at, match.end())

    def _nested(self, start: int, counted: bool) -> Value:
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
                    return Value(start, at, commas + 1 if content else 0)
            else:
                match = _plain.match(raw, at, at + PIECE)
                if match is None and following != b'"':
                    raise BadBody("the body is not valid JSON: a list or an object has no end")
                if match is None:  # a string that is longer than a piece
                    at, content = self._string(at), True
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


OPENS = (b"[", b"{")
CLOSES: Mapping[bytes, bytes] = {b"]": b"[", b"}": b"{"}


class Reader:
    """Reads large bodies in threads, few at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="large body")
        self._waiting = 0

    async def read(self, path: bytes, raw: bytes | bytearray) -> LargeBody:
        """Raise BadBody; Busy if too many wait already."""
        if self._waiting >= MAX_WAITING + READERS:
            raise Busy
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, LargeBody, path, raw)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _after_space(raw: bytes | bytearray, at: int) -> int:
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


def _unescaped(text: bytes) -> str:
    """The beginning of a JSON string's inside, which may be cut off anywhere."""
    match = _text.match(text)
    inside = match.group() if match else b""
    whole = _half_escape.sub("", inside.decode("utf-8", "ignore"))
    try:
        return str(json.loads(f'"{whole}"', strict=False))  # half a surrogate pair stays what it is
    except ValueError:
        return whole
