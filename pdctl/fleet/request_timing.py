"""Requests sent at given times, whether or not earlier ones have been answered, and when each of their tokens arrived.

An open loop: a server that falls behind gets as much to do as before, as from users.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from pdctl.fleet import http_client, peer_json
from pdctl.fleet.canary_probe import GENERATE
from pdctl.fleet.deadline import SLICE, Deadline
from pdctl.fleet.http_connection import Call
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_HEAD, LARGEST_EVENT = 64 << 10, 8 << 10  # bytes of a streamed answer: in all, and for each token


class TimedRequest(NamedTuple):
    """`at_s`: seconds from the first request's; exactly `output_tokens` are asked for, greedily."""

    at_s: float
    input_ids: tuple[int, ...]
    output_tokens: int


class TimedAnswer(NamedTuple):
    """Seconds from the begin of the whole. `token_s`: of each token that came; `problem` is "" if all did."""

    sent_s: float
    token_s: tuple[float, ...]
    problem: str = ""


def send_open_loop(
    url: str, requests: Sequence[TimedRequest], answer_within_s: float, key: str = ""
) -> tuple[TimedAnswer, ...]:
    """Send each request to a router or an engine when its time has come. `answer_within_s`: granted to each answer.

    Requests by time. An answer in the order of the requests; one that failed has its reason in `problem`.
    """
    began = time.monotonic()
    due = list(requests)[::-1]
    streams: list[_Stream] = []
    open_streams: list[_Stream] = []
    while due or open_streams:
        while due and due[-1].at_s <= time.monotonic() - began:
            streams.append(_Stream(url, due.pop(), began, Deadline(answer_within_s), key))
            open_streams.append(streams[-1])
        open_streams = [stream for stream in open_streams if not stream.call.over]
        patience = SLICE if not due else min(SLICE, max(0.0, due[-1].at_s - (time.monotonic() - began)))
        poll = select.poll()
        for stream in open_streams:
            poll.register(stream.call, stream.call.events)
            patience = min(patience, stream.call.left)
        happened = dict(poll.poll(int(patience * 1000)))
        now = time.monotonic() - began
        for stream in open_streams:
            event = happened.get(stream.call.fileno(), 0)
            if event or not stream.call.left:
                stream.advance(event, now)
    return tuple(stream.answer() for stream in streams)


class _Stream:
    """One request on its way. `arrivals`: for each piece of the body that came at once, when."""

    def __init__(self, url: str, request: TimedRequest, began: float, deadline: Deadline, key: str) -> None:
        sampling = {"max_new_tokens": request.output_tokens, "temperature": 0.0, "ignore_eos": True}
        body = {"input_ids": list(request.input_ids), "sampling_params": sampling, "stream": True}
        self._wanted = request.output_tokens
        limit = LARGEST_HEAD + LARGEST_EVENT * request.output_tokens
        self._sent = time.monotonic() - began
        self.call = Call("POST", url.rstrip("/") + GENERATE, body, deadline, key=key, limit=limit)
        self._arrivals: list[tuple[int, float]] = []  # how many pieces there were, and when
        self.call.advance()

    def advance(self, event: int, now: float) -> None:
        self.call.advance(event)
        if len(self.call.pieces) > (self._arrivals[-1][0] if self._arrivals else 0):
            self._arrivals.append((len(self.call.pieces), now))

    def answer(self) -> TimedAnswer:
        """Each token has the time of the piece that completed the event which tells of it."""
        status, reason = self.call.reader.status, self.call.reason
        if status != 200:
            said = peer_json.complaint(b"".join(self.call.pieces)) if status else reason
            return TimedAnswer(self._sent, (), f"answered {status}: {said}" if status else said)
        times: list[float] = []
        seen, rest = 0, b""
        for count, at in self._arrivals:
            *lines, rest = (rest + b"".join(self.call.pieces[seen:count])).split(b"\n")
            seen = count
            for data in http_client.payloads([line + b"\n" for line in lines]):
                told = peer_json.mapping(peer_json.mapping(peer_json.parse(data)).get("meta_info"))
                tokens = peer_json.integer(told.get("completion_tokens")) or 0
                times += [at] * (min(tokens, self._wanted) - len(times))
        if len(times) < self._wanted:
            return TimedAnswer(self._sent, tuple(times), reason or f"{len(times)} of {self._wanted} tokens came")
        return TimedAnswer(self._sent, tuple(times))
