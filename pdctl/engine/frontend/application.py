"""The ASGI application: access control, the routes, and one error format for everything that goes wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from pdctl.engine.frontend import generate, instance_routes, openai, responses
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.http_auth import SIGNATURE, AccessLevel, Gate, Keys
from pdctl.log_lines import cut, word

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pdctl.engine.frontend.responses import EngineInstance

log = logging.getLogger("pdctl.engine")
MAX_SIGNED = 64 << 10  # bytes of a body that is read for its signature: signed requests are small
NAMES = (b"authorization", SIGNATURE.encode())


LEVELS = {
    # sglang leaves health and metrics open
    **dict.fromkeys(("/health", "/health_generate", "/ready", "/metrics"), AccessLevel.OPEN),
    **dict.fromkeys(("/flush_cache", "/pd_role_switch"), AccessLevel.ADMIN),
    **dict.fromkeys(("/abort_request", "/debug/rooms"), AccessLevel.GRADED),
}  # every other route: AccessLevel.CLIENT


def build(instance: EngineInstance, keys: Keys) -> ASGIApp:
    app = FastAPI(title="pdctl engine", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.instance = instance
    for module in (generate, openai, instance_routes):
        app.include_router(module.router)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, Gate(keys))


class Guard:
    """Checks access before the application. `scope["state"]["admin"]` tells whether the request has admin rights."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            needed = LEVELS.get(scope["path"], AccessLevel.CLIENT)
            scope.setdefault("state", {})["admin"] = False
            if not self._gate.asks_nothing(needed):
                headers = {name: value for name, value in scope["headers"] if name in NAMES}
                signature = headers.get(NAMES[1], b"").decode("ascii", "replace")
                body = b""
                if signature:
                    body, receive = await _read(receive)
                target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
                judged = self._gate.judge(
                    needed,
                    headers.get(NAMES[0], b""),
                    signature,
                    scope["method"],
                    target.decode("utf-8", "surrogateescape"),
                    body,
                )
                if judged.refusal:
                    path = cut(word(scope["path"]))
                    log.warning("Answered %s %s with 401: %s", scope["method"], path, judged.refusal)
                    refused = responses.error(HttpRefusal(401, judged.refusal))
                    refused.headers["WWW-Authenticate"] = "Bearer"
                    await refused(scope, receive, send)
                    return
                scope["state"]["admin"] = judged.admin
        await self.app(scope, receive, send)


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Return the body and a `receive` that repeats it; of a longer one the beginning, which no signature matches."""
    parts: list[bytes] = []
    messages: list[Message] = []
    size = 0
    while size <= MAX_SIGNED:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            break

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return b"".join(parts), again


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HttpRefusal)
    if problem.status >= 400 and problem.status != 499:
        path = cut(word(request.url.path))
        log.warning("Answered %s %s with %d: %s", request.method, path, problem.status, problem.message)
    return responses.error(problem)


async def _routing(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    said = f"{request.method} {cut(request.url.path)}: {problem.detail}"
    return responses.error(HttpRefusal(problem.status_code, said))


async def _query(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return responses.error(HttpRefusal(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))


async def _left(request: Request, problem: Exception) -> Response:
    return Response(status_code=499)


async def _bug(request: Request, problem: Exception) -> Response:
    """uvicorn logs the traceback; the client gets only the kind of error."""
    return responses.error(
        HttpRefusal(500, f"internal error: {type(problem).__name__}; the instance's log has the details")
    )


HANDLERS = {
    HttpRefusal: _refused,
    HTTPException: _routing,
    RequestValidationError: _query,
    ClientDisconnect: _left,
    Exception: _bug,
}
