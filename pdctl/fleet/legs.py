"""One request of our own on both legs of a pair, as a router would send it: same body, same moment (sglang /generate).

Room and bootstrap address are in the body, so no router takes part. Whatever happens, nothing is left behind: legs that
have not answered are closed and aborted by their rid.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.pdctl import adapter
from pdctl.fleet import document, http, sse
from pdctl.fleet.address import Unanswered, bracketed, parse
from pdctl.fleet.call import Call, wait
from pdctl.fleet.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.fleet.http import Answer

GENERATE, ABORT = "/generate", "/abort_request"
ABORT_WITHIN = 2.0  # seconds an engine has to take the abort of a request it should no longer hold
MAX_ROOM = 2**53  # rooms of SGLang have 63 bits; below this every JSON tool can carry them
_rooms = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Side:
    """One instance of a pair. Of a prefill: the bootstrap host and port that go into the body, a port of None as null.

    bootstrap_host None: the host of its URL, as routers do. Null is never sent: it ends a decode's scheduler (0.5.13+).
    """

    name: str
    url: str
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` instead of `text` for engines without a tokenizer. `tokens`: how many are to be generated, exactly."""

    text: str = "The quick brown fox jumps over the lazy dog. The quick brown"
    ids: tuple[int, ...] = ()
    tokens: int = 8

    def body(self, samples: int = 1) -> dict[str, object]:
        sampling: dict[str, object] = {"max_new_tokens": self.tokens, "temperature": 0.0, "ignore_eos": True}
        if samples > 1:
            sampling["n"] = samples
        given: dict[str, object] = {"input_ids": list(self.ids)} if self.ids else {"text": self.text}
        return {**given, "sampling_params": sampling}


@dataclass(frozen=True, slots=True)
class Exchange:
    """What became of one room. A leg that was given up on has status 0; `spoke`: the decode sent a token."""

    room: int
    prefill: Answer
    decode: Answer
    seconds: float
    spoke: bool = False


def fresh_room() -> int:
    """Never 0, which sglang takes for "not written"; even, as n samples take the room and those after it."""
    return 2 * _rooms.randrange(1, MAX_ROOM // 2)


def exchange(
    prefill: Side,
    decode: Side,
    body: Mapping[str, object],
    deadline: Deadline,
    *,
    key: str = "",
    both: bool = False,
    leave: bool = False,
) -> Exchange:
    """`both`: wait for both answers even when one leg fails. `leave`: stream, and go once the decode has spoken."""
    room = fresh_room()
    rid = adapter.rid(room)
    sent = {
        **body,
        "rid": rid,
        "stream": leave,
        "bootstrap_host": prefill.bootstrap_host or _host(prefill.url),
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": room,
    }
    sides = (prefill, decode)
    calls = [Call("POST", side.url.rstrip("/") + GENERATE, sent, deadline, key=key) for side in sides]
    spoken = Speech(calls[1])

    def enough() -> bool:
        return (not both and any(map(_failed, calls))) or (leave and spoken.begun())

    try:
        wait(calls, enough)
    finally:
        unfinished = [side for side, call in zip(sides, calls, strict=True) if not call.over or call.reason]
        for call in calls:
            call.close()
        _abort(unfinished, rid, key)
    first, second = map(http.finish, calls)
    return Exchange(room, first, second, max(call.seconds for call in calls), leave and spoken.begun())


class Speech:
    """Whether a streamed answer holds a token yet."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._seen = 0
        self._begun = False

    def begun(self) -> bool:
        pieces = self._call.pieces
        if not self._begun and len(pieces) > self._seen and self._call.reader.status == 200:
            self._seen = len(pieces)
            self._begun = any(outputs(document.parse(data)) for data in sse.payloads(pieces))
        return self._begun


@dataclass(frozen=True, slots=True)
class Output:
    """One generated sequence. `finish`: stop, length or abort; `message`: why it was aborted."""

    text: str
    tokens: int
    finish: str
    message: str


def outputs(value: object) -> tuple[Output, ...]:
    """The sequences of a /generate answer that hold a token or were aborted; a batch and n > 1 are lists."""
    found = map(_output, [document.mapping(value)] if isinstance(value, dict) else document.mappings(value))
    return tuple(one for one in found if one.tokens or one.finish == "abort")


def _output(value: document.Object) -> Output:
    meta = document.mapping(value.get("meta_info"))
    finish = document.mapping(meta.get("finish_reason"))
    ids = value.get("output_ids")
    ids = ids if isinstance(ids, list) else []
    text = document.text(value.get("text")) or " ".join(map(str, filter(_small, ids)))
    return Output(
        text=text,
        tokens=document.integer(meta.get("completion_tokens")) or len(ids) or int(bool(text)),
        finish=document.text(finish.get("type")),
        message=document.excerpt(document.text(finish.get("message"))),
    )


def _small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 32


def _host(url: str) -> str:
    try:
        return bracketed(parse(url).host)
    except Unanswered:
        return url  # no address: nothing will be sent to it


def _failed(call: Call) -> bool:
    return call.over and (bool(call.reason) or call.reader.status != 200)


def _abort(sides: Sequence[Side], rid: str, key: str) -> None:
    """Also when the deadline has passed or was called off: this is what leaves the engines clean."""
    within = Deadline(ABORT_WITHIN)
    calls = [Call("POST", side.url.rstrip("/") + ABORT, {"rid": rid}, within, key=key) for side in sides]
    try:
        wait(calls)
    finally:
        for call in calls:
            call.close()
