"""A large request body, read in a thread piece by piece, so that the event loop runs in between.

A parser would hold the interpreter for as long as it takes: seconds for 32 MB. Here unknown members are left out
unread, prompts are read item by item and no longer than the context, and only the small rest is parsed at once.

Token ids become arrays of 4 bytes each. A list of millions of them holds the interpreter for a tenth of a second
whenever the garbage collector looks through it, and once more when it is freed.
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from pdctl.engine.frontend.intake import MAX_BATCH, TOO_LONG
from pdctl.engine.frontend.refusal import HttpRefusal
from pdctl.engine.frontend.request_bodies import RequestBody
from pdctl.json_members import BadBody, JsonSpan, Scan, after_space, has_more_commas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

B = TypeVar("B", bound=RequestBody)

LARGE = 256 << 10  # bytes from which a body is read here
MANY = 2048  # commas from which it is, too: sampling parameters take 11 us each
PIECE = 16 << 10  # bytes that are parsed at once
SMALL = 64 << 10  # bytes of a member that is parsed with the rest
MAX_REST, MAX_VALUES = 4 << 20, 1 << 17  # bytes and values of all members that are parsed at once
READERS, MAX_WAITING = 2, 64  # bodies read at the same time, and waiting for that
MAX_HELD = 1 << 30  # bytes of all bodies that are being received or read
PROMPTS = frozenset(("text", "input_ids", "prompt"))
# Lists with an entry for each prompt, or for each sample of it.
ENTRIES = frozenset(
    (
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"),
        *("sampling_params", "return_logprob", "top_logprobs_num", "logprob_start_len"),
    )
)
LONGEST_CHARACTER = 12  # bytes in JSON: two \\uXXXX


class TokenRules(NamedTuple):
    """At most `context` tokens are in a prompt, `longest` characters in a token; `check` refuses ids of no word."""

    context: int
    longest: int
    check: Callable[[Sequence[int]], None]


class BodyMemory:
    """How many bytes of bodies this process has in memory before they are requests."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._most = most
        self._bytes = 0

    def take(self, size: int) -> None:
        """Raises HttpRefusal (503) where there is no room for so many more."""
        if self._bytes + size > self._most:
            raise HttpRefusal(503, f"this engine holds as many bytes of request bodies as it may ({self._most})")
        self._bytes += size

    def give(self, size: int) -> None:
        self._bytes -= size


class LargeRequestReader:
    """Reads large bodies, few at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="large body")
        self._waiting = 0

    async def read(self, parts: list[bytes], model: type[B], parse: Callable[[bytes], B], words: TokenRules) -> B:
        """Raises HttpRefusal. `parts`: of the body, one after the other. `parse` makes the model of what is small."""
        if self._waiting >= MAX_WAITING + READERS:
            raise HttpRefusal(503, f"{self._waiting} large bodies are being read already; send it again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, parts, model, parse, words)
        finally:
            self._waiting -= 1


def read(parts: list[bytes], model: type[B], parse: Callable[[bytes], B], words: TokenRules) -> B:
    """`parse` of all `parts` together, but for unknown members. Raises HttpRefusal."""
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
                told = f"a request may hold 1 to {MAX_BATCH} prompts times samples"
                raise HttpRefusal(400, f"{name} has {value.items} entries; {told}")
            if value.end - value.start <= SMALL:
                prompts.pop(name, None)
                rest.append(raw[start : value.end])
            elif name in model.unsupported:
                rest.append(orjson.dumps(name) + b":true")
            elif name in PROMPTS and raw[value.start] in b'["':
                prompts[name] = _prompt(Prompts(raw, name, words), value)
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
    return parse(small).model_copy(update=prompts)


def is_large(parts: list[bytes], size: int) -> bool:
    """Whether a body of so many bytes takes too long to be parsed at once."""
    return size >= LARGE or sum(part.count(b",") for part in parts) > MANY


def _stand_in(prompt: str | array[int] | list[Any]) -> object:
    """Of the same type, and small."""
    if isinstance(prompt, str):
        return "a"
    return [1] * len(prompt[:1]) if isinstance(prompt, array) else [_stand_in(one) for one in prompt[:1]]


class Prompts:
    """One member of the body: a text, token ids, or a list of either."""

    def __init__(self, raw: bytes, name: str, words: TokenRules) -> None:
        self.raw, self.name, self.words = raw, name, words

    def wrong(self, what: str) -> HttpRefusal:
        return HttpRefusal(400, f"{self.name}: {what}")

    def too_long(self, size: str) -> HttpRefusal:
        told = f"The input ({size}) is longer than the model's context length ({self.words.context} tokens)."
        return HttpRefusal(400, told, TOO_LONG)

    def text(self, at: int, end: int) -> str:
        """Of the JSON string between two quotes."""
        if self.name == "input_ids":
            raise self.wrong("Input should be a list of token ids")
        parts, size, start = [], 0, at
        while at < end:
            found, at = self._piece(at, min(at + PIECE, end), end)
            parts.append(found)
            size += len(found)
            if size // self.words.longest >= self.words.context:
                raise self.too_long(f"{end - start} bytes of text, at least {size // self.words.longest} tokens")
        return "".join(parts)

    def _piece(self, at: int, stop: int, end: int) -> tuple[str, int]:
        """Some of the text and where it stops. A cut may fall into a character or an escape: then a little later."""
        try:
            return str(orjson.loads(b'"' + self.raw[at:stop] + b'"')), stop
        except orjson.JSONDecodeError as error:
            if stop >= end or stop >= at + PIECE + LONGEST_CHARACTER:
                raise self.wrong(f"the body is not valid JSON: {error}") from None
        return self._piece(at, stop + 1, end)

    def ids(self, value: JsonSpan) -> array[int]:
        """Of the list of numbers at `value`."""
        if self.name == "text":
            raise self.wrong("Input should be a string or a list of strings")
        if value.items > self.words.context:
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
            self.words.check(some)
            found.fromlist(some)
            at = stop + 1
        if self.raw[end - 1 : end] == b",":
            raise self.wrong("the body is not valid JSON: a list ends with a comma")
        return found


def _prompt(prompts: Prompts, value: JsonSpan) -> str | list[str] | array[int] | list[array[int]]:
    raw = prompts.raw
    if raw[value.start : value.start + 1] == b'"':
        return prompts.text(value.start + 1, value.end - 1)
    at = after_space(raw, value.start + 1)
    first = raw[at : at + 1]
    if first not in (b'"', b"["):
        return prompts.ids(value)
    if value.items > MAX_BATCH:
        raise HttpRefusal(400, f"a request may hold 1 to {MAX_BATCH} prompts times samples, got {value.items}")
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
