"""A large request body: read piece by piece beside the event loop, sent on without being copied.

A parser takes the whole body at once, holds the interpreter for as long (0.6 s for 100 MB) and makes objects of many
times its size. What the router has to know is where the members of the outermost object begin and end, and the values
of a few small ones. Whether the rest is valid JSON is left to the engines.
"""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import orjson

from pdctl.json_members import BadBody, Scan, Value, after_space
from pdctl.router.body import BOOTSTRAP_FIELDS, PROMPT_LIMIT, Body, check_bootstrap, check_items, rids_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE = 256 << 10  # bytes from which a body is read here
MAX_FIELD = 1 << 20  # bytes of a member whose value the router has to know
READERS = 2  # bodies read at the same time
MAX_WAITING = 64  # bodies that wait for that

_text = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_half_escape = re.compile(r"\\u[0-9a-fA-F]{0,3}$")
_blank = re.compile(r"\s+")


class Busy(Exception):
    """Too many large bodies are being read already."""


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
        self.rids = rids_of(small)

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
            start = after_space(self._raw, value.start + 1)
            first = self._raw[start : start + 1]
            if name == "input_embeds":
                inner = after_space(self._raw, start + 1)
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


FIELDS = ("stream", "return_logprob", "rid", "n", "sampling_params")


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


def _unescaped(text: bytes) -> str:
    """The beginning of a JSON string's inside, which may be cut off anywhere."""
    match = _text.match(text)
    inside = match.group() if match else b""
    whole = _half_escape.sub("", inside.decode("utf-8", "ignore"))
    try:
        return str(json.loads(f'"{whole}"', strict=False))  # half a surrogate pair stays what it is
    except ValueError:
        return whole
