"""The FastAPI application: routes, and one error shape for whatever goes wrong on the way to them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from pdctl.client_text import word
from pdctl.engine.frontend import chat, completions, control, generate, info, responses
from pdctl.engine.frontend.guard import Guard
from pdctl.engine.frontend.refusal import Refusal
from pdctl.http_auth import Gate, Keys

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pdctl.engine.frontend.instance import Instance

NO_KEYS = Keys()
log = logging.getLogger("pdctl.engine")


def build(instance: Instance, keys: Keys = NO_KEYS) -> ASGIApp:
    app = FastAPI(title="pdctl engine", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.instance = instance
    for module in (generate, completions, chat, info, control):
        app.include_router(module.router)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, Gate(keys))


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Refusal)
    if problem.status >= 400 and problem.status != 499:
        path = word(request.url.path)
        log.warning("Answered %s %s with %d: %s", request.method, path, problem.status, problem.message)
    return responses.error(problem)


async def _routing(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return responses.error(Refusal(problem.status_code, f"{request.method} {request.url.path}: {problem.detail}"))


async def _query(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return responses.error(Refusal(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))


async def _left(request: Request, problem: Exception) -> Response:
    return Response(status_code=499)


async def _bug(request: Request, problem: Exception) -> Response:
    """uvicorn logs the traceback; the client gets the kind of error only."""
    return responses.error(
        Refusal(500, f"internal error: {type(problem).__name__}; the instance's log has the details")
    )


HANDLERS = {
    Refusal: _refused,
    HTTPException: _routing,
    RequestValidationError: _query,
    ClientDisconnect: _left,
    Exception: _bug,
}
