"""What all routes share: the instance they serve, one format of errors, answers in JSON, streams of events.

A stream stops, and what is left of the call is aborted, when the client leaves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from starlette.responses import Response

from pdctl.engine.cluster.dp_controller import resolve
from pdctl.engine.frontend.request_bodies import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.intake import Intake
    from pdctl.engine.frontend.observability import Metrics
    from pdctl.engine.frontend.request_bodies import GenerateBody, OpenAIBody
    from pdctl.engine.frontend.request_state import Options, Pending, PromptInput, RequestGroup
    from pdctl.engine.frontend.tokenizer import CheckpointTexts
    from pdctl.engine.frontend.tokenizer_manager import TokenizerManager
    from pdctl.engine.ipc.messages import Finish

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One running instance as its HTTP routes see it."""

    args: ServerArgs
    checkpoint: CheckpointTexts
    intake: Intake
    manager: TokenizerManager
    metrics: Metrics
    ranks: Ranks
    forget_ranks: Callable[[], None]  # called when the instance is no longer a prefill, to hide its ranks
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each start-up phase, added when it ends

    @property
    def context_length(self) -> int:
        return self.intake.limits.context

    @property
    def now(self) -> ServerArgs:
        """`args` with the current role."""
        return dataclasses.replace(self.args, disaggregation_mode=self.manager.mode)

    @property
    def load_balance_method(self) -> str:
        return resolve(self.now)


def instance_of(request: Request) -> EngineInstance:
    """Return the instance that serves `request`."""
    instance: EngineInstance = request.app.state.instance
    return instance


def json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_body(refusal: HttpRefusal) -> dict[str, object]:
    """Return OpenAI's error object. `code` is the HTTP status, as in SGLang; `type` is a word for programs to match."""
    return {"error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}}


def error(refusal: HttpRefusal) -> Response:
    response = json(error_body(refusal), refusal.status)
    if refusal.status == 503:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response


def finish_reason(finish: Finish | None, matched: str | None) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched if matched is None else matched}
    if finish.type == "length":
        return {"type": "length", "length": finish.length}
    return {
        "type": finish.type,
        "message": finish.message,
        "status_code": finish.status or None,
        "err_type": finish.code or None,
    }


def event(content: object) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


@asynccontextmanager
async def watched(request: Request, manager: TokenizerManager, group: RequestGroup) -> AsyncIterator[None]:
    """Abort what is left of `group` as soon as the client disconnects or the body raises."""
    watcher = asyncio.create_task(_watch(request.receive, lambda: manager.abandon(group)))
    try:
        yield
    except BaseException:
        manager.abandon(group)
        raise
    finally:
        watcher.cancel()


async def _watch(receive: Receive, leave: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()


class AnswerShape(Protocol):
    """How one route formats the answer to a call."""

    def whole(self) -> object:
        """Return the JSON answer, once every member has ended."""

    def chunks(self, member: Pending) -> Iterable[bytes]:
        """Return the events to send for a member that has news."""

    def tail(self) -> Iterable[bytes]:
        """Return the events to send after the last member has ended."""


class EventStream(Response):
    """Server-sent events: the shape's chunks as members have news, its tail, then `[DONE]`."""

    media_type = "text/event-stream"

    def __init__(self, group: RequestGroup, shape: AnswerShape, leave: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._group = group
        self._shape = shape
        self._leave = leave
        self.init_headers({"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. `leave` is called when the client disconnects, and when the stream ends."""
        watcher = asyncio.create_task(_watch(receive, self._leave))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._run(send)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            watcher.cancel()
            self._leave()

    async def _run(self, send: Send) -> bytes:
        """Send all but the last part, and return that: it shares a packet with the end of the response."""
        try:
            async for member in self._group.updates():
                part = b"".join(self._shape.chunks(member))
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except HttpRefusal as refusal:
            return event(error_body(refusal)) + DONE
        return b"".join(self._shape.tail()) + DONE


async def respond(
    request: Request,
    body: GenerateBody | OpenAIBody,
    prompts: Sequence[PromptInput],
    options: Sequence[Options],
    shape: Callable[[RequestGroup], AnswerShape],
) -> Response:
    """Hand a generation call to the scheduler and answer it, as JSON or as a stream. Raise HttpRefusal.

    `options` has one entry, or one for each prompt.

    A stream's status line is held back until there is something to send: a request that fails before its first token
    gets a real HTTP error (as on sglang's OpenAI routes), on which a router can act. Later failures are events.
    """
    instance = instance_of(request)
    manager = instance.manager
    jobs = await instance.intake.jobs(prompts, options, body, manager.admit)
    group = await manager.submit(jobs, body.stream, request.headers.get("traceparent", ""))
    answer = shape(group)
    async with watched(request, manager, group):
        if group.stream:
            await group.first()
        else:
            await group.finished()
    if group.stream:
        return EventStream(group, answer, lambda: manager.abandon(group))
    return json(answer.whole())
