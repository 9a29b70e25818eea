"""One generation request after intake: what goes to the scheduler, what has come back, and who waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.tokenizer import Detokenizer, StopStrings
from pdctl.engine.ipc.messages import Finish, steady_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pdctl.engine.frontend.tokenizer import Tokenizer
    from pdctl.engine.ipc.messages import Generate, Meta, Sampling, Tokens

GONE = Finish("abort", message="the client closed the connection", status=499, code="client_gone")
ABORTED = "aborted"  # the scheduler's code for a request that a client asked to abort


@dataclass(frozen=True, slots=True)
class PromptInput:
    """Text still to be tokenized, or ids. `special` adds the tokenizer's own begin and end tokens to text."""

    text: str | None = None
    ids: Sequence[int] | None = None
    special: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    """How one prompt is to be answered. `stops` are strings, matched on decoded text; `n` samples of each prompt."""

    sampling: Sampling
    stops: tuple[str, ...] = ()
    trim_stop: bool = True
    skip_special: bool = True
    n: int = 1
    return_logprob: bool = False
    top_logprobs: int = 0
    # Whether max_new_tokens was asked for (then it must fit) or is a default (then it shrinks to what fits).
    explicit_length: bool = False


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """`index` counts samples over the whole HTTP request: prompt by prompt, `n` of each."""

    message: Generate
    options: Options
    index: int = 0

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def describe(self) -> str:
        """SGLang's level-0 request line: the only place where a rid and its room appear together."""
        message = self.message
        return (
            f"GenerateReqInput(rid={message.rid!r}, bootstrap_host={message.bootstrap_host!r}, "
            f"bootstrap_port={message.bootstrap_port}, bootstrap_room={message.bootstrap_room})"
        )


@dataclass(slots=True)
class RequestTimes:
    """Seconds since the epoch, as SGLang's meta_info gives them; 0 until reached."""

    received: float
    dispatched: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    finished: float = 0.0


class Pending:
    """One request. Text is decoded only when needed: to find a stop string, to send a stream, or at the end."""

    __slots__ = (
        "_decoded",
        "_detokenizer",
        "_stops",
        "clock",
        "finish",
        "group",
        "ids",
        "job",
        "logprobs",
        "matched",
        "meta",
        "top_logprobs",
        "unread",
    )

    def __init__(self, job: GenerationJob, tokenizer: Tokenizer, group: RequestGroup) -> None:
        self.job = job
        self.group = group
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []
        self.finish: Finish | None = None
        self.matched: str | None = None
        self.meta: Meta | None = None
        self.clock = RequestTimes(job.message.received)
        self.unread = False
        self._detokenizer = Detokenizer(tokenizer, job.options.skip_special)
        self._stops = StopStrings(job.options.stops)
        self._decoded = 0

    def take(self, tokens: Tokens, now: float) -> bool:
        """Add new tokens. Return True if a stop string ended the request here but the scheduler is still at it."""
        self.meta = tokens.meta or self.meta
        if tokens.ids:
            self.clock.first_token = self.clock.first_token or now
            self.clock.last_token = now
        if self.job.options.return_logprob:
            self.logprobs.extend(tokens.logprobs)
            self.top_logprobs.extend(tokens.top_logprobs)
        if not self.job.options.stops:
            self.ids.extend(tokens.ids)
        elif self._take_until_stop(tokens):
            self._end(Finish("stop"), now)
            return tokens.finish is None
        if tokens.finish is not None:
            self._end(tokens.finish, now)
        return False

    def _take_until_stop(self, tokens: Tokens) -> bool:
        """Add tokens one by one and return whether a stop string was found; drop those that follow it."""
        for place, token in enumerate(tokens.ids):
            self.ids.append(token)
            if place == len(tokens.ids) - 1 and self._ends_text(tokens.finish):
                return False
            self._decode()
            hit = self._stops.find(self._detokenizer.text)
            if hit is not None:
                at, self.matched = hit
                end = at if self.job.options.trim_stop else at + len(self.matched)
                self._detokenizer.text = self._detokenizer.text[:end]
                return True
        return False

    def _ends_text(self, finish: Finish | None) -> bool:
        """Return whether the last token stopped the answer (end of sequence) and is therefore not part of the text."""
        if finish is None or finish.type != "stop" or not self.job.options.trim_stop or not self.ids:
            return False
        return self.ids[-1] == finish.matched

    def _decode(self) -> None:
        if self._decoded < len(self.ids):
            self._detokenizer.push(self.ids[self._decoded :])
            self._decoded = len(self.ids)

    def _end(self, finish: Finish, now: float) -> None:
        if self.finish is not None:
            return
        self.finish = finish
        self.clock.finished = now
        if self.matched is not None:
            del self.logprobs[len(self.ids) :], self.top_logprobs[len(self.ids) :]
            return
        self._detokenizer.push(self.ids[self._decoded : len(self.ids) - self._ends_text(finish)])
        self._detokenizer.flush()
        self._decoded = len(self.ids)

    def end(self, finish: Finish) -> None:
        """End the request from this side (client gone, rank died, shutdown)."""
        self._end(finish, steady_time())

    @property
    def text(self) -> str:
        """The text that may be shown so far; it only ever grows."""
        if self.finish is None:
            self._decode()
            text = self._detokenizer.text
            held = self._stops.held(text) if self.job.options.stops else 0
            return text[: len(text) - held] if held else text
        return self._detokenizer.text

    @property
    def refusal(self) -> HttpRefusal | None:
        """The HTTP error this request ended with. An abort that a client asked for is an ordinary, shorter answer."""
        finish = self.finish
        if finish is None or finish.type != "abort" or finish.code == ABORTED or not 400 <= finish.status < 600:
            return None
        return HttpRefusal(finish.status, finish.message or "the request was aborted", finish.code)

    @property
    def cached_tokens(self) -> int:
        return self.meta.cached_tokens if self.meta else 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.message.input_ids)


class RequestGroup:
    """The requests of one HTTP call, and the task that waits for them."""

    def __init__(
        self, jobs: tuple[GenerationJob, ...], tokenizer: Tokenizer, stream: bool, traceparent: str = ""
    ) -> None:
        self.traceparent = traceparent  # W3C trace context of the caller
        self.members = tuple(Pending(job, tokenizer, self) for job in jobs)
        self.stream = stream
        self.gone = False
        self._open = len(self.members)
        self._news: list[Pending] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self._open == 0

    def note(self, member: Pending, ended: bool) -> None:
        """Note that `member` has news. Each wakes a stream; a plain answer wakes once, at the end (or on a failure)."""
        if ended:
            self._open -= 1
        if not member.unread:
            member.unread = True
            self._news.append(member)
        if self.stream or self._open == 0 or (ended and member.refusal is not None):
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def first(self) -> None:
        """Wait until there is something to send. Raise the HttpRefusal of a member that failed."""
        if not self._news and not self.done:
            await self._wait()
        self._check()

    async def updates(self) -> AsyncIterator[Pending]:
        """Yield members with news until all have ended. Raise the HttpRefusal of a member that failed.

        A reader slower than the engine gets fewer and longer updates, never a queue. No deadline is needed here: the
        scheduler limits bootstrap and transfer, and the manager ends every request when a rank dies or falls silent.
        """
        while self._news or not self.done:
            if not self._news:
                await self._wait()
            news, self._news = self._news, []
            for member in news:
                member.unread = False
                if member.refusal is not None:
                    raise member.refusal
                yield member

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def finished(self) -> None:
        """Wait until all members have ended. Raise the HttpRefusal of one that failed, not waiting for the others."""
        self._check()
        while not self.done:
            await self._wait()
            self._check()

    def _check(self) -> None:
        for member in self.members:
            if member.refusal is not None:
                raise member.refusal
