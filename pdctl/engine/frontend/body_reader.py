"""Read the JSON body of a request: at once if it is small, otherwise piece by piece on a thread.

Parsing a body in one call holds the GIL all the while: seconds for 32 MB. Therefore unknown members of a large body are
skipped, prompts are read item by item and only up to the context length, and just the small rest is parsed.

Token ids become arrays of 4 bytes each. A list of millions of them holds the GIL for a tenth of a second whenever the
garbage collector traverses it, and once more when it is freed.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import ValidationError

from pdctl.engine.frontend.intake import MAX_BATCH, TOO_LONG
from pdctl.engine.frontend.request_bodies import HttpRefusal, RequestBody
from pdctl.engine.frontend.responses import instance_of
from pdctl.engine.ipc.http_protocol import MAX_BODY
from pdctl.http_auth import declared_size
from pdctl.large_json import (
    LARGE,
    MAX_WAITING,
    READERS,
    BadBody,
    Busy,
    JsonSpan,
    LargeBodyReader,
    Scan,
    after_space,
    has_more_commas,
)
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_core import ErrorDetails
    from starlette.requests import Request

B = TypeVar("B", bound=RequestBody)

MAX_HELD = 1 << 30  # bytes of all bodies that are being received or read
MANY = 2048  # commas above which a body counts as large, whatever its size: sampling parameters take 11 us each
PIECE = 16 << 10  # bytes that are parsed at once
SMALL = 64 << 10  # bytes up to which a member is parsed with the rest
MAX_REST, MAX_VALUES = 4 << 20, 1 << 17  # bytes and values of all members that are parsed at once
PROMPTS = frozenset(("text", "input_ids", "prompt"))
# Lists with an entry for each prompt, or for each sample of it.
ENTRIES = frozenset(
    (
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"),
        *("sampling_params", "return_logprob", "top_logprobs_num", "logprob_start_len"),
    )
)
LONGEST_CHARACTER = 12  # bytes in JSON: two \\uXXXX


class BodyMemory:
    """Limits the bytes of bodies that this process holds before they become requests."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._most = most
        self._bytes = 0

    def take(self, size: int) -> None:
        """Reserve `size` bytes. Raise HttpRefusal (503) if there is no room for them."""
        if self._bytes + size > self._most:
            raise HttpRefusal(503, f"this engine holds as many bytes of request bodies as it may ({self._most})")
        self._bytes += size

    def give(self, size: int) -> None:
        self._bytes -= size


_held, _large = BodyMemory(), LargeBodyReader()  # of this process


async def read_body(request: Request, model: type[B]) -> B:
    """Return the JSON body, whatever its content type says.

    Raise HttpRefusal: 413 if it is too large, 400 if malformed or unsupported, 503 while there is no room for it.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpRefusal(
            400, "the body is compressed (content-encoding), which this engine does not read: send it plain"
        )
    if declared_size(request.headers.raw) > MAX_BODY:
        raise HttpRefusal(413, f"the body is larger than {MAX_BODY} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            if size + len(part) > MAX_BODY:
                raise HttpRefusal(413, f"the body is larger than {MAX_BODY} bytes")
            _held.take(len(part))
            size += len(part)
            parts.append(part)
        if is_large(parts, size):
            instance = instance_of(request)
            tokenizer = instance.checkpoint.tokenizer
            rules = TokenRules(instance.intake.limits.context, tokenizer.longest_token, tokenizer.check_ids)
            parsed: B = await _large.read(read_large, parts, model, rules)
        else:
            parsed = parse(b"".join(parts), model)
    except Busy:
        waiting = READERS + MAX_WAITING
        raise HttpRefusal(503, f"{waiting} large bodies are being read already; send it again later") from None
    finally:
        _held.give(size)
    check_supported(parsed)
    return parsed


def is_large(parts: list[bytes], size: int) -> bool:
    """Return whether a body of `size` bytes takes too long to be parsed at once."""
    return size >= LARGE or sum(part.count(b",") for part in parts) > MANY


def parse(raw: bytes, model: type[B]) -> B:
    """Return the parsed body. Raise HttpRefusal (400) with the first four errors."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as problem:
        raise HttpRefusal(400, "; ".join(dict.fromkeys(map(_describe, problem.errors()[:4])))) from None


def _describe(problem: ErrorDetails) -> str:
    """`sampling_params.max_new_tokens: Input should be a valid integer (got 'five')`."""
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON: {problem['ctx']['error']}"
    # The names of a union's branches mean nothing to a client: str, list[int], SamplingBody, …
    steps = [
        str(step) for step in problem["loc"] if isinstance(step, int) or (str(step).islower() and "[" not in str(step))
    ]
    steps = [step for step in steps if step not in ("str", "int", "bool", "float")]
    given = repr(problem["input"])
    shown = "" if problem["type"] == "missing" else f" (got {given[:60]}{'…' if len(given) > 60 else ''})"
    return f"{'.'.join(steps) or 'body'}: {problem['msg']}{shown}"


def check_supported(parsed: RequestBody) -> None:
    """Raise HttpRefusal (400) for a field that this engine would otherwise silently ignore."""
    if parsed.refused:
        told = f"not supported by this engine: {', '.join(parsed.refused)}. Leave it out."
        raise HttpRefusal(400, told, "unsupported")


class TokenRules(NamedTuple):
    """At most `context` tokens in a prompt and `longest` characters in a token; `check` refuses unknown ids."""

    context: int
    longest: int
    check: Callable[[Sequence[int]], None]


def read_large(parts: list[bytes], model: type[B], rules: TokenRules) -> B:
    """Do as `parse` does for the joined `parts`, but piece by piece and without unknown members. Raise HttpRefusal."""
    raw = b"".join(parts)
    known = model.model_fields.keys() | model.unsupported
    prompts: dict[str, Any] = {}
    rest: list[bytes] = []
    try:
        scan = Scan(raw, PROMPTS | ENTRIES)
        for (name, value), start in zip(scan.members(), scan.starts, strict=True):
            if name not in known:
                continue
            if name in ENTRIES and raw[value.start : value.start + 1] == b"[" and value.items > MAX_BATCH:
                raise _too_many(name, value.items)
            # First of all: a router adds lists as long as this one.
            if name in PROMPTS and value.items > MAX_BATCH and _batch(raw, value):
                raise _too_many(name, value.items)
            if value.end - value.start <= SMALL:
                prompts.pop(name, None)
                rest.append(raw[start : value.end])
            elif name in model.unsupported:
                rest.append(orjson.dumps(name) + b":true")
            elif name in PROMPTS and raw[value.start] in b'["':
                prompts[name] = _prompt(PromptMember(raw, name, rules), value)
                rest.append(orjson.dumps(name) + b":" + orjson.dumps(_stand_in(prompts[name])))
            else:
                rest.append(raw[start : value.end])
    except BadBody as error:
        raise HttpRefusal(400, str(error)) from None
    if sum(map(len, rest)) > MAX_REST:
        raise HttpRefusal(413, f"what is no prompt of the body is larger than {MAX_REST} bytes")
    small = b"{" + b",".join(rest) + b"}"
    if has_more_commas(small, MAX_VALUES):
        raise HttpRefusal(413, f"what is no prompt of the body has more than {MAX_VALUES} values")
    return parse(small, model).model_copy(update=prompts)


def _too_many(name: str, entries: int) -> HttpRefusal:
    return HttpRefusal(400, f"{name} has {entries} entries; a request may hold 1 to {MAX_BATCH} prompts times samples")


def _batch(raw: bytes, value: JsonSpan) -> bool:
    """Return whether a prompt member is a list of prompts."""
    at = after_space(raw, value.start + 1)
    return raw[value.start : value.start + 1] == b"[" and raw[at : at + 1] in (b'"', b"[")


def _stand_in(prompt: str | array[int] | list[Any]) -> object:
    """Return a small value of the same type."""
    if isinstance(prompt, str):
        return "a"
    return [1] * len(prompt[:1]) if isinstance(prompt, array) else [_stand_in(one) for one in prompt[:1]]


class PromptMember:
    """One member of the body: a text, token ids, or a list of either."""

    def __init__(self, raw: bytes, name: str, rules: TokenRules) -> None:
        self.raw, self.name, self.rules = raw, name, rules

    def wrong(self, what: str) -> HttpRefusal:
        return HttpRefusal(400, f"{self.name}: {what}")

    def too_long(self, size: str) -> HttpRefusal:
        told = f"The input ({size}) is longer than the model's context length ({self.rules.context} tokens)."
        return HttpRefusal(400, told, TOO_LONG)

    def text(self, at: int, end: int) -> str:
        """Return the JSON string between two quotes."""
        if self.name == "input_ids":
            raise self.wrong("Input should be a list of token ids")
        parts, size, start = [], 0, at
        while at < end:
            found, at = self._piece(at, min(at + PIECE, end), end)
            parts.append(found)
            size += len(found)
            if size // self.rules.longest >= self.rules.context:
                raise self.too_long(f"{end - start} bytes of text, at least {size // self.rules.longest} tokens")
        return "".join(parts)

    def _piece(self, at: int, stop: int, end: int) -> tuple[str, int]:
        """Return part of the text and where it stops; a cut within a character or an escape moves a little further."""
        try:
            return str(orjson.loads(b'"' + self.raw[at:stop] + b'"')), stop
        except orjson.JSONDecodeError as error:
            if stop >= end or stop >= at + PIECE + LONGEST_CHARACTER:
                raise self.wrong(f"the body is not valid JSON: {error}") from None
        return self._piece(at, stop + 1, end)

    def ids(self, value: JsonSpan) -> array[int]:
        """Return the list of numbers at `value`."""
        if self.name == "text":
            raise self.wrong("Input should be a string or a list of strings")
        if value.items > self.rules.context:
            raise self.too_long(f"{value.items} tokens")
        found = array("i")
        at, end = value.start + 1, value.end - 1
        while at < end:
            comma = self.raw.find(b",", at + PIECE, end)
            stop = end if comma < 0 else comma
            if stop - at > 2 * PIECE:
                raise self.wrong(f"something at byte {at} is no list of token ids")
            try:
                some = orjson.loads(b"[" + self.raw[at:stop] + b"]")
            except orjson.JSONDecodeError as error:
                raise self.wrong(f"the body is not valid JSON: {error}") from None
            if not {int}.issuperset(map(type, some)):
                raise self.wrong("Input should be a list of integers")
            self.rules.check(some)
            found.fromlist(some)
            at = stop + 1
        if self.raw[end - 1 : end] == b",":
            raise self.wrong("the body is not valid JSON: a list ends with a comma")
        return found


def _prompt(prompts: PromptMember, value: JsonSpan) -> str | list[str] | array[int] | list[array[int]]:
    raw = prompts.raw
    if raw[value.start : value.start + 1] == b'"':
        return prompts.text(value.start + 1, value.end - 1)
    if not _batch(raw, value):
        return prompts.ids(value)
    at = after_space(raw, value.start + 1)
    first = raw[at : at + 1]
    items: list[Any] = []
    scan = Scan(raw)
    while True:
        if raw[at : at + 1] != first:
            raise prompts.wrong("Input should be a list of strings, or of lists of token ids")
        item = scan.value(at, True)
        items.append(prompts.ids(item) if first == b"[" else prompts.text(item.start + 1, item.end - 1))
        at = after_space(raw, item.end)
        if raw[at : at + 1] != b",":
            return items
        at = after_space(raw, at + 1)
