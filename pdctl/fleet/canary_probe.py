"""Send real requests through every pair, to both legs as a router does: what works, whatever health checks say."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.pdctl import own_adapters
from pdctl.engines.sglang.endpoints import paths
from pdctl.engines.sglang.loads import HELD, OLD_HELD
from pdctl.engines.sglang.metrics import METRICS
from pdctl.fleet import http_client, peer_json, prometheus_text
from pdctl.fleet.address import Unanswered, parse
from pdctl.fleet.deadline import Deadline, map_within
from pdctl.fleet.http_connection import Call, wait
from pdctl.fleet.observations import BURST, CANCEL, N2, OVER_LENGTH, PAIR, Canary, HeldRequests
from pdctl.fleet.prober import Prober
from pdctl.loopback import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pdctl.fleet.http_client import Answer
    from pdctl.fleet.observations import Endpoint
    from pdctl.fleet.peer_json import Object


GENERATE, ABORT = "/generate", "/abort_request"
ABORT_WITHIN = 2.0  # seconds for an engine to accept the abort of a request it should no longer hold
MAX_ROOM = 2**53  # SGLang's rooms have 63 bits; below 2**53 every JSON tool handles them exactly
_rooms = random.SystemRandom()
EXTRAS = (OVER_LENGTH, CANCEL, N2, BURST)
AT_ONCE = 16  # pairs of the matrix tried at once
PATIENCE = 20.0  # seconds for one pair: if it is wrong, real engines stay silent for 300
TOGETHER = 8  # requests in a burst
LONG_ANSWER = 128  # tokens of the answer that is cancelled
FILLER = 1  # the token that an over-long prompt consists of


@dataclass(frozen=True, slots=True)
class Side:
    """One instance of a pair. For a prefill: the bootstrap host and port in the body; a port of None is sent as null.

    bootstrap_host None: the host of its URL, as routers send it. A null host is never sent, because it ends a
    decode's scheduler (0.5.13+).
    """

    name: str
    url: str
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` instead of `text` for engines without a tokenizer. `tokens`: the exact number to generate."""

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
class PairExchange:
    """The outcome of one room. A leg that was given up has status 0; `spoke`: the decode sent a token."""

    room: int
    prefill: Answer
    decode: Answer
    seconds: float
    spoke: bool = False


def fresh_room() -> int:
    """A random room: never 0, which sglang takes for "not written"; even, since n samples also use the rooms after."""
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
) -> PairExchange:
    """Send `body` to both legs. `both`: wait for both even if one fails. `leave`: stream, leave at the first token."""
    room = fresh_room()
    rid = own_adapters.rid(room)
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
    spoken = StreamedTokens(calls[1])

    def enough() -> bool:
        return (not both and any(map(_failed, calls))) or (leave and spoken.begun())

    try:
        wait(calls, enough)
    finally:
        unfinished = [side for side, call in zip(sides, calls, strict=True) if not call.over or call.reason]
        for call in calls:
            call.close()
        _abort(unfinished, rid, key)
    first, second = map(http_client.answer_of, calls)
    return PairExchange(room, first, second, max(call.seconds for call in calls), leave and spoken.begun())


class StreamedTokens:
    """Watches a streamed answer for its first token."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._seen = 0
        self._begun = False

    def begun(self) -> bool:
        pieces = self._call.pieces
        if not self._begun and len(pieces) > self._seen and self._call.reader.status == 200:
            self._seen = len(pieces)
            self._begun = any(outputs(peer_json.parse(data)) for data in http_client.payloads(pieces))
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
    found = map(_output, [peer_json.mapping(value)] if isinstance(value, dict) else peer_json.mappings(value))
    return tuple(one for one in found if one.tokens or one.finish == "abort")


def _output(value: peer_json.Object) -> Output:
    meta = peer_json.mapping(value.get("meta_info"))
    finish = peer_json.mapping(meta.get("finish_reason"))
    ids = value.get("output_ids")
    ids = ids if isinstance(ids, list) else []
    text = peer_json.text(value.get("text")) or " ".join(map(str, filter(_small, ids)))
    return Output(
        text=text,
        tokens=peer_json.integer(meta.get("completion_tokens")) or len(ids) or int(bool(text)),
        finish=peer_json.text(finish.get("type")),
        message=peer_json.excerpt(peer_json.text(finish.get("message"))),
    )


def _small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 32


def _host(url: str) -> str:
    try:
        return bracketed(parse(url).host)
    except Unanswered:
        return url  # not an address: nothing will be sent to it


def _failed(call: Call) -> bool:
    return call.over and (bool(call.reason) or call.reader.status != 200)


def _abort(sides: Sequence[Side], rid: str, key: str) -> None:
    """Abort the request on both sides, even after the deadline, so that the engines hold nothing of it."""
    within = Deadline(ABORT_WITHIN)
    calls = [Call("POST", side.url.rstrip("/") + ABORT, {"rid": rid}, within, key=key) for side in sides]
    try:
        wait(calls)
    finally:
        for call in calls:
            call.close()


@dataclass(frozen=True, slots=True)
class Errand:
    """One kind of request on one pair: `patience` seconds for it, `whole` for all of them together."""

    kind: str
    prefill: Side
    decode: Side
    whole: Deadline
    patience: float
    key: str

    def send(self, body: dict[str, object], *, both: bool = False, leave: bool = False) -> PairExchange | None:
        """Send `body`; None if the time for all of them is over."""
        if self.whole.passed:
            return None
        within = self.whole.within(self.patience)
        return exchange(self.prefill, self.decode, body, within, key=self.key, both=both, leave=leave)

    def unsent(self, reason: str = "") -> Canary:
        reason = reason or f"the {self.whole.seconds:.3g} s for all of them were over"
        return Canary(self.kind, self.prefill.name, self.decode.name, 0, None, 0.0, reason=f"not sent: {reason}")

    def result(self, done: PairExchange, reason: str) -> Canary:
        """The canary's result; it is ok if `reason` is empty."""
        given = outputs(done.decode.json()) if done.decode.ok else ()
        return Canary(
            kind=self.kind,
            prefill=self.prefill.name,
            decode=self.decode.name,
            room=done.room,
            ok=not reason,
            seconds=done.seconds,
            text=given[0].text if given else "",
            prefill_status=done.prefill.status,
            decode_status=done.decode.status,
            finish_reason=given[0].finish if given else "",
            reason=reason,
        )

    def judged(self, done: PairExchange | None) -> Canary:
        """The result; ok if both legs answered 200 and the decode's answer has tokens that were not aborted."""
        if done is None:
            return self.unsent()
        sides = ((self.prefill.name, done.prefill), (self.decode.name, done.decode))
        problems = [said for name, answer in sides if (said := _problem(name, answer))]
        if not problems and not outputs(done.decode.json()):
            problems = [f"{self.decode.name} answered 200 without a token: {peer_json.excerpt(done.decode.text)}"]
        return self.result(done, "; ".join(problems))


def matrix(
    prefills: Sequence[Side],
    decodes: Sequence[Side],
    deadline: float,
    *,
    prompt: Prompt | None = None,
    patience: float = PATIENCE,
    at_once: int = AT_ONCE,
    key: str = "",
    told: Callable[[Canary], None] | None = None,
) -> tuple[Canary, ...]:
    """One request per pair within `deadline` seconds, ordered by prefill, then decode.

    `told` is called with each result as it ends, from several threads.
    """
    whole = Deadline(deadline)
    body = (prompt or Prompt()).body()

    def attempt(errand: Errand) -> Canary:
        cell = errand.judged(errand.send(body))
        if told is not None:
            told(cell)
        return cell

    # Along the diagonals, so that no instance gets a second room while others have none.
    width = len(decodes)
    order = [(i, (i + shift) % width) for shift in range(width) for i in range(len(prefills))]
    errands = [Errand(PAIR, prefills[i], decodes[j], whole, patience, key) for i, j in order]
    placed = zip(order, map_within(attempt, errands, at_once, whole), strict=True)
    return tuple(cell for _, cell in sorted(placed, key=lambda one: one[0]))


def extras(
    prefill: Side,
    decode: Side,
    deadline: float,
    *,
    kinds: Sequence[str] = EXTRAS,
    too_long: int | None = None,
    prompt: Prompt | None = None,
    patience: float = PATIENCE,
    key: str = "",
) -> tuple[Canary, ...]:
    """The named kinds on one pair, one by one. `too_long`: tokens neither side may accept, None if unknown."""
    whole = Deadline(deadline)
    found: list[Canary] = []
    for kind in kinds:
        errand = Errand(kind, prefill, decode, whole, patience, key)
        if kind == OVER_LENGTH:
            found.append(_over_length(errand, too_long))
        elif kind == CANCEL:
            found.append(_cancel(errand, prompt or Prompt()))
        elif kind == N2:
            found.append(_n2(errand, prompt or Prompt()))
        else:
            found += _burst(errand, prompt or Prompt())
    return tuple(found)


def _over_length(errand: Errand, length: int | None) -> Canary:
    """An over-long prompt, ok if both legs answer 4xx; `seconds`: until the slower one refused."""
    if length is None:
        return errand.unsent("no limit of their prompts is known")
    done = errand.send(Prompt(ids=(FILLER,) * length, tokens=1).body(), both=True)
    if done is None:
        return errand.unsent()
    sides = ((errand.prefill.name, done.prefill), (errand.decode.name, done.decode))
    wrong = (_not_refused(name, answer, length) for name, answer in sides if not 400 <= answer.status < 500)
    return errand.result(done, "; ".join(wrong))


def _not_refused(name: str, answer: Answer, length: int) -> str:
    return f"{name} took a prompt of {length} tokens" if answer.ok else _problem(name, answer)


def _cancel(errand: Errand, prompt: Prompt) -> Canary:
    """A cancelled stream, ok if the decode had sent a token when it was left; the queues show what remains of it.

    Not for sglang 0.5.13 with NIXL, where a decode's abort ends the prefill's bootstrap thread (sglang/faults.py).
    """
    done = errand.send(Prompt(prompt.text, prompt.ids, LONG_ANSWER).body(), leave=True)
    return errand.result(done, "") if done is not None and done.spoke else errand.judged(done)


def _n2(errand: Errand, prompt: Prompt) -> Canary:
    done = errand.send(prompt.body(samples=2))
    found = errand.judged(done)
    if done is None or not found.ok:
        return found
    texts = [output.text for output in outputs(done.decode.json())]
    if len(texts) != 2:
        return errand.result(done, f"{errand.decode.name} gave {len(texts)} of 2 samples")
    return errand.result(done, "" if texts[0] == texts[1] else "its two greedy samples differ")


def _burst(errand: Errand, prompt: Prompt) -> tuple[Canary, ...]:
    body = prompt.body()
    return map_within(lambda one: one.judged(one.send(body)), (errand,) * TOGETHER, TOGETHER, errand.whole)


def _problem(name: str, answer: Answer) -> str:
    """What is wrong with an answer, "" if nothing is, or if the leg was cancelled because the other failed."""
    if not answer.reached:
        return "" if answer.reason == http_client.CANCELLED else f"{name}: {answer.reason}"
    if not answer.ok:
        return f"{name} answered {answer.status}: {peer_json.complaint(answer.body)}"
    aborted = [output for output in outputs(answer.json()) if output.finish == "abort"]
    return f"{name} answered 200, aborted: {aborted[0].message}" if aborted else ""


QUEUES_AT_ONCE = 48  # engines
QUEUE_PATIENCE = 5.0  # seconds for one request, which the scheduler answers
AGAIN = 0.25  # seconds between requests to an engine that still holds something

# The same in /metrics. Engines update these only periodically, so a value may be half a minute old.
GAUGES = tuple(dict.fromkeys(row.name for row in METRICS if row.queue))
NOW, METRICS_PATH, OLD = paths("loads")[0], *paths("metrics"), paths("loads")[-1]


def queues(
    engines: Sequence[Endpoint],
    deadline: float,
    *,
    patience: float = QUEUE_PATIENCE,
    key: str = "",
    at_once: int = QUEUES_AT_ONCE,
) -> tuple[HeldRequests, ...]:
    """What each engine still holds, in order: polled until nothing is left, for at most `deadline` seconds."""
    whole = Deadline(deadline + patience)
    until = whole.within(deadline)
    probing = Prober(whole, patience, key)
    return map_within(lambda engine: _drained(engine, probing, until), engines, at_once, whole)


def _drained(engine: Endpoint, probing: Prober, until: Deadline) -> HeldRequests:
    pause = threading.Event()  # never set; its wait() is a sleep bounded by the deadline
    last = HeldRequests(engine.name, MappingProxyType({}), False)
    while (found := _held_requests(engine.url.rstrip("/"), probing)) is not None:
        held, late = found
        last = HeldRequests(engine.name, MappingProxyType(held), True, late)
        if late or not held or until.passed:  # a gauge updated every half minute does not become empty in time
            break
        pause.wait(min(AGAIN, until.left))
    return last


def _held_requests(url: str, probing: Prober) -> tuple[dict[str, float], bool] | None:
    """What the engine holds, by the names of the source, and whether that may be old; None if it cannot be read."""
    loads = probing.look(url, NOW)
    entries = peer_json.mappings(peer_json.mapping(loads.body).get("loads"))
    if loads.ok and entries:
        return _sum_over_ranks(entries, HELD), False
    old = probing.look(url, OLD)
    entries = peer_json.mappings(old.body)
    if old.ok and entries:
        return _sum_over_ranks(entries, OLD_HELD), False
    metrics = probing.ask(url, METRICS_PATH)
    if metrics.ok and (found := prometheus_text.totals(metrics.text)).keys() & set(GAUGES):
        return {name: found[name] for name in GAUGES if found.get(name)}, True
    return None


def _sum_over_ranks(entries: Iterable[Object], keys: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The counts summed over the DP ranks, without zeros."""
    held: dict[str, float] = {}
    for entry in entries:
        for section, name in keys:
            place: Mapping[str, object] = peer_json.mapping(entry.get(section)) if section else entry
            value = peer_json.number(place.get(name))
            if value:
                held[name] = held.get(name, 0.0) + value
    return held
