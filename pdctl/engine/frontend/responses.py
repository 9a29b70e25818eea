"""What every route shares: JSON through orjson, one error shape, server-sent events that notice a client leave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from pdctl.engine.frontend.body_reader import BodyMemory, LargeRequestReader, TokenRules, is_large
from pdctl.engine.frontend.refusal import HttpRefusal
from pdctl.engine.frontend.request_bodies import RequestBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from pydantic_core import ErrorDetails
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pdctl.engine.frontend.instance import EngineInstance
    from pdctl.engine.frontend.request_state import Pending, RequestGroup
    from pdctl.engine.frontend.tokenizer_manager import TokenizerManager

B = TypeVar("B", bound=RequestBody)

MAX_BODY = 32 << 20  # bytes; half a scheduler frame, so that whatever fits here fits there
DONE = b"data: [DONE]\n\n"
held, large = BodyMemory(), LargeRequestReader()  # of this process


def json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_body(refusal: HttpRefusal) -> dict[str, object]:
    """OpenAI's envelope. `code` is the HTTP status, as SGLang has it; `type` is a word for programs."""
    return {"error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}}


def error(refusal: HttpRefusal) -> Response:
    response = json(error_body(refusal), refusal.status)
    if refusal.status == 503:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response


def event(content: object) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


async def body(request: Request, model: type[B]) -> B:
    """The JSON body, whatever its content type says.

    Raises HttpRefusal: 413 too large, 400 malformed or unsupported, 503 while there is no room for it.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:16]) > MAX_BODY:
        raise HttpRefusal(413, f"the body is larger than {MAX_BODY} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            if size + len(part) > MAX_BODY:
                raise HttpRefusal(413, f"the body is larger than {MAX_BODY} bytes")
            held.take(len(part))
            size += len(part)
            parts.append(part)
        if is_large(parts, size):
            instance: EngineInstance = request.app.state.instance
            tokenizer = instance.checkpoint.tokenizer
            words = TokenRules(instance.intake.limits.context, tokenizer.longest_token, tokenizer.check_ids)
            parsed = await large.read(parts, model, lambda small: _parsed(small, model), words)
        else:
            parsed = _parsed(b"".join(parts), model)
    finally:
        held.give(size)
    check_supported(parsed)
    return parsed


def _parsed(raw: bytes, model: type[B]) -> B:
    try:
        return model.model_validate_json(raw)
    except ValidationError as problem:
        raise HttpRefusal(400, "; ".join(dict.fromkeys(map(_describe, problem.errors()[:4])))) from None


def check_supported(parsed: RequestBody) -> None:
    """Raises HttpRefusal (400) for a field whose meaning this engine would silently lose."""
    if parsed.refused:
        raise HttpRefusal(
            400, f"not supported by this engine: {', '.join(parsed.refused)}. Leave it out.", "unsupported"
        )


def _describe(problem: ErrorDetails) -> str:
    """`sampling_params.max_new_tokens: Input should be a valid integer (got 'five')`."""
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON: {problem['ctx']['error']}"
    # The names of a union's branches say nothing to a client: str, list[int], SamplingBody, …
    steps = [
        str(step) for step in problem["loc"] if isinstance(step, int) or (str(step).islower() and "[" not in str(step))
    ]
    steps = [step for step in steps if step not in ("str", "int", "bool", "float")]
    given = repr(problem["input"])
    shown = "" if problem["type"] == "missing" else f" (got {given[:60]}{'…' if len(given) > 60 else ''})"
    return f"{'.'.join(steps) or 'body'}: {problem['msg']}{shown}"


@asynccontextmanager
async def watched(request: Request, manager: TokenizerManager, group: RequestGroup) -> AsyncIterator[None]:
    """While inside, a client that closes its connection aborts what is left of `group` at once."""
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
    """How one route words the answer to a call."""

    def whole(self) -> object:
        """The JSON answer, once every member has ended."""

    def chunks(self, member: Pending) -> Iterable[bytes]:
        """The events of a stream for a member that has news."""

    def tail(self) -> Iterable[bytes]:
        """Events after the last member's end."""


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
        """`leave` is called when the client goes, or when the stream ends anyhow."""
        watcher = asyncio.create_task(_watch(receive, self._leave))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._run(send)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            watcher.cancel()
            self._leave()

    async def _run(self, send: Send) -> bytes:
        """Send everything but the last part: that one shares a packet with the end of the response."""
        try:
            async for member in self._group.updates():
                part = b"".join(self._shape.chunks(member))
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except HttpRefusal as refusal:
            return event(error_body(refusal)) + DONE
        return b"".join(self._shape.tail()) + DONE


async def respond(request: Request, manager: TokenizerManager, group: RequestGroup, shape: AnswerShape) -> Response:
    """The answer to a generation call, as JSON or as a stream.

    A stream's status line waits for its first news: a request that fails before its first token is answered with a real
    HTTP error (sglang does so on its OpenAI routes), which a router can act on. Later failures travel in the stream.
    """
    async with watched(request, manager, group):
        if group.stream:
            await group.first()
        else:
            await group.finished()
    if group.stream:
        return EventStream(group, shape, lambda: manager.abandon(group))
    return json(shape.whole())
