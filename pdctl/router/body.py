"""Bodies of generations: what the router reads in requests and answers, and how the three bootstrap fields are added.

The client's bytes are spliced, never re-serialised, so unknown fields, big integers, order and escapes are kept. A
large body is read piece by piece off the event loop and sent on without being copied: the router finds where the
members of the outermost object begin and end, and reads a few small ones. Whether the rest is valid JSON is left to the
engines.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pdctl.large_json import BadBody, JsonSpan, Scan, after_space
from pdctl.log_lines import rid_problem

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

MAX_ROOM = 2**53 - 1  # the largest integer every JSON tool preserves; to sglang's metadata gate 0 means "not written"
TOO_LARGE = 2.0**63  # the parser may read an integer from here on as a float
MAX_ITEMS = 16 * 1024  # of one batch
PROMPT_LIMIT = 16 * 1024  # characters that the cache_aware policy looks at
_space = re.compile(r"[ \t\n\r]*")
# Numbers stay text: they are skipped, not read, and an integer of 5,000 digits must not be an error.
_decoder = json.JSONDecoder(parse_int=str, parse_float=str)
MAX_FIELD = 1 << 20  # bytes of a member whose value the router needs to know
_text = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_half_escape = re.compile(r"\\u[0-9a-fA-F]{0,3}$")
_blank = re.compile(r"\s+")
FIELDS = ("stream", "return_logprob", "rid", "n", "sampling_params")


def _is_integer(value: object) -> bool:
    """Return whether engines take it for an integer: 2.0 and 1e3 are none. One too large for the parser is a float."""
    if isinstance(value, float):
        return abs(value) >= TOO_LARGE
    return isinstance(value, int) and not isinstance(value, bool)


def _is_string(value: object) -> bool:
    return isinstance(value, str)


# What engines accept in these fields. A client's values are replaced, but an error in them is still reported.
BOOTSTRAP_FIELDS = {
    "bootstrap_host": ("a string", _is_string),
    "bootstrap_port": ("an integer", _is_integer),
    "bootstrap_room": ("an integer", _is_integer),
}


class GenerationBody:
    """`items` is the size of a batch; None if one room serves the request (sglang derives room + i from it)."""

    __slots__ = ("_end", "_fields", "_path", "_raw", "items", "logprobs", "rids", "samples", "stream")

    _raw: bytes | bytearray

    def __init__(self, path: bytes, raw: bytes) -> None:
        fields = _parse(raw)
        if not BOOTSTRAP_FIELDS.keys().isdisjoint(fields):
            check_bootstrap(fields)
            try:
                raw = _without(raw, BOOTSTRAP_FIELDS.keys())
            except RecursionError:
                raise BadBody("the body is nested too deeply") from None
            fields = {name: value for name, value in fields.items() if name not in BOOTSTRAP_FIELDS}
        self._path, self._raw, self._fields = path, raw, fields
        self._end = raw.rindex(b"}")
        self.stream = fields.get("stream") is True
        self.logprobs = fields.get("return_logprob") is True
        self.samples = samples_of(path, fields)
        self.items = check_items(items_of(path, fields, self.samples))
        self.rids: tuple[str, ...] = rids_of(fields)

    def rooms(self) -> tuple[int, ...]:
        """Return new rooms, one per item; for a scalar request of n samples, those sglang derives from the first."""
        count = self.samples if self.items is None else self.items
        if count == 1:
            return (_room(),)
        if self.items is None:
            first = min(_room(), MAX_ROOM - count + 1)
            return tuple(range(first, first + count))
        chosen: set[int] = set()
        while len(chosen) < count:
            chosen.add(_room())
        return tuple(chosen)

    def addressed(self, host: str, port: int | None, rooms: Sequence[int]) -> bytes:
        """Return the body for both legs of one attempt. `port` None is sent as null (only rehearsals do that)."""
        comma = b"," if self._fields else b""
        return bytes(self._raw[: self._end]) + comma + self.fields(host, port, rooms)

    def pieces(self, host: str, port: int | None, rooms: Sequence[int]) -> tuple[bytes | memoryview, ...]:
        """Return the same as `addressed`, in pieces to be sent one after the other."""
        return (self.addressed(host, port, rooms),)

    def fields(self, host: str, port: int | None, rooms: Sequence[int]) -> bytes:
        """Return the last members of the body, with the closing brace."""
        if self.items is None:
            told = b"null" if port is None else b"%d" % port
            return b'"bootstrap_host":"%b","bootstrap_port":%b,"bootstrap_room":%d}' % (host.encode(), told, rooms[0])
        count = len(rooms)
        return b'"bootstrap_host":%b,"bootstrap_port":%b,"bootstrap_room":%b}' % (
            orjson.dumps([host] * count),
            orjson.dumps([port] * count),
            orjson.dumps(rooms),
        )

    def prompt(self) -> str:
        """Return what the engine will see first, for prefix affinity: exact enough to distinguish two prompts."""
        fields = self._fields
        if self._path == b"/v1/chat/completions":
            return str(fields.get("messages"))[:PROMPT_LIMIT]
        for name in ("text", "prompt", "input_ids"):
            value = fields.get(name)
            if isinstance(value, str):
                return value[:PROMPT_LIMIT]
            if isinstance(value, list) and value:
                return str(value[: PROMPT_LIMIT // 2])[:PROMPT_LIMIT]
        return ""


def _room() -> int:
    return random.getrandbits(53) or 1


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        fields = _parse_slowly(raw, error)
    if not isinstance(fields, dict):
        raise BadBody(f"the body is a JSON {_kind(fields)}; an object is expected")
    return fields


def _parse_slowly(raw: bytes, error: orjson.JSONDecodeError) -> object:
    """Parse valid JSON that the fast parser refuses: 1e999, half a surrogate pair. The workers may accept it."""

    def refuse(name: str) -> object:
        raise ValueError(name)  # NaN and Infinity: Python's own extension

    try:
        return json.loads(raw.decode(), parse_int=_integer, parse_constant=refuse)
    except ValueError:
        raise BadBody(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)


def _without(raw: bytes, names: Set[str]) -> bytes:
    """Return `raw`, a valid JSON object, without its members of these names; every other member keeps its bytes."""
    text = raw.decode()
    kept = []
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        start = at
        key, at = _decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        _, at = _decoder.raw_decode(text, at)
        if key not in names:
            kept.append(text[start:at])
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return ("{" + ",".join(kept) + "}").encode()


def _skip(text: str, at: int) -> int:
    match = _space.match(text, at)
    return match.end() if match else at


class LargeGenerationBody(GenerationBody):
    """Like GenerationBody, for `raw` of any size, but without checking that nested values are valid JSON."""

    __slots__ = ("_kept", "_values")

    def __init__(self, path: bytes, raw: bytes | bytearray) -> None:
        scan = Scan(raw)
        members = scan.members()
        self._values: dict[str, JsonSpan] = dict(members)
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
        """Decide as `items_of` does for a parsed body."""
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
        """Return the same as `addressed`, without a copy, in pieces to be sent one after the other."""
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


def _unescaped(text: bytes) -> str:
    """Decode the beginning of a JSON string's contents, which may be cut off anywhere."""
    match = _text.match(text)
    inside = match.group() if match else b""
    whole = _half_escape.sub("", inside.decode("utf-8", "ignore"))
    try:
        return str(json.loads(f'"{whole}"', strict=False))  # half a surrogate pair is left as it is
    except ValueError:
        return whole


def check_bootstrap(fields: dict[str, Any]) -> None:
    for name, (wanted, fits) in BOOTSTRAP_FIELDS.items():
        value = fields.get(name)
        for entry in value if isinstance(value, list) else (value,):
            if entry is not None and not fits(entry):
                shown = "" if isinstance(entry, dict | list) else f" {json.dumps(entry)[:64]}"
                raise BadBody(
                    f"{name}: the JSON {_kind(entry)}{shown}; {wanted} is expected, or a list with one for each item. "
                    "The router sets this field itself: it may be left out"
                )


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def samples_of(path: bytes, fields: dict[str, Any]) -> int:
    source = fields.get("sampling_params") if path == b"/generate" else fields
    value = source.get("n") if isinstance(source, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 < value <= 4096 else 1


def rids_of(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the client's own names for the request. What is not text, or is empty, the engines will refuse."""
    rid = fields.get("rid")
    found = tuple(one for one in (rid if isinstance(rid, list) else (rid,)) if isinstance(one, str) and one)
    for one in found:
        problem = rid_problem(one)
        if problem:
            raise BadBody(problem)
    return found


def items_of(path: bytes, fields: dict[str, Any], samples: int) -> int | None:
    """Return a batch's size by sglang 0.5.23's rule (io_struct.GenerateReqInput); chat takes one room per sample."""
    if path == b"/v1/chat/completions":
        return samples if samples > 1 else None
    names = ("text", "input_ids", "input_embeds") if path == b"/generate" else ("prompt",)
    for name in names:
        value = fields.get(name)
        if not isinstance(value, list) or not value:
            continue
        first = value[0]
        if name == "input_embeds":
            nested = isinstance(first, list) and bool(first) and isinstance(first[0], list)
        else:
            nested = isinstance(first, (str, list))
        return len(value) if nested else None
    return None


def check_items(count: int | None) -> int | None:
    """Return `count`; raise BadBody if it is too large. Each item gets a room of its own."""
    if count is not None and count > MAX_ITEMS:
        raise BadBody(f"a batch of {count} items; at most {MAX_ITEMS} are taken at once: send several requests")
    return count


@dataclass(frozen=True, slots=True)
class StreamError:
    status: int
    message: str


def first_event(parts: Sequence[bytes]) -> bool:
    """Return whether the stream starts with a complete event that has data."""
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    return text.startswith(b"data:") and b"\n\n" in text


def stream_error(parts: Sequence[bytes]) -> StreamError | None:
    """Return the error that is the first event of a stream, or None if that is no error.

    sglang 0.5.8-0.5.23 answers 200 before it knows the outcome: a failed KV transfer then comes as `{"error": {…,
    "code": 500}}` (OpenAI routes) or as a finish reason `abort` with a status code (/generate). An error without a code
    is the client's own (0.5.8).
    """
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    first = text[: text.find(b"\n\n")] if b"\n\n" in text else text
    if b'"error"' not in first and b'"abort"' not in first:
        return None
    try:
        event = orjson.loads(first.removeprefix(b"data:").strip())
    except orjson.JSONDecodeError:
        return None
    return _error_of(event) if isinstance(event, dict) else None


def _error_of(event: dict[str, Any]) -> StreamError | None:
    error = event.get("error")
    if isinstance(error, dict):
        return StreamError(_status(error.get("code"), 400), str(error.get("message", "")))
    meta = event.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort" and reason.get("status_code") is not None:
        return StreamError(_status(reason["status_code"], 500), str(reason.get("message", "")))
    return None


def _status(value: object, default: int) -> int:
    return value if isinstance(value, int) and 400 <= value < 600 else default


def merge_logprobs(prefill: bytes, decode: bytes) -> bytes:
    """Return decode's /generate answer with the prompt's logprobs in front, which only the prefill has computed.

    If either answer has another shape, decode's is returned unchanged.
    """
    try:
        theirs, ours = orjson.loads(prefill), orjson.loads(decode)
    except orjson.JSONDecodeError:
        return decode
    if isinstance(theirs, list) and isinstance(ours, list):
        merged = [_merge(one, other) for one, other in zip(theirs, ours, strict=False)]
    else:
        merged = [_merge(theirs, ours)]
    return orjson.dumps(ours) if any(merged) else decode


def _merge(prefill: object, decode: object) -> bool:
    theirs, ours = _meta(prefill), _meta(decode)
    first, second = theirs.get("input_token_logprobs"), ours.get("input_token_logprobs")
    if not isinstance(first, list) or not isinstance(second, list):
        return False
    ours["input_token_logprobs"] = first + second
    return True


def _meta(answer: object) -> dict[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    return meta if isinstance(meta, dict) else {}
