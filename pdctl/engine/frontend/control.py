"""Acting on an instance: abort requests, flush the cache, switch its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from pdctl.engine.frontend import responses
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.request_bodies import AbortBody, RoleSwitchBody

if TYPE_CHECKING:
    from pdctl.engine.frontend.instance import Instance

router = APIRouter()

FLUSH_WITHIN = 10.0


@router.post("/abort_request")
async def abort_request(request: Request) -> Response:
    """By rid prefix, as sglang does. 200 also when nothing matched: the request may have ended a moment ago.

    Where admin requests are protected, others reach only a request whose whole rid they name.
    """
    instance: Instance = request.app.state.instance
    body = await responses.body(request, AbortBody)
    admin = request.scope["state"]["admin"]
    if body.abort_all and not admin:
        raise Refusal(401, "abort_all needs the admin API key or the deployment secret (docs/security.md)")
    instance.manager.abort(body.rid, body.abort_all, exact=not admin)
    return Response(status_code=200)


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> Response:
    """400 while requests run, with how many."""
    instance: Instance = request.app.state.instance
    instance.manager.admit(0)
    replies = await instance.manager.flush(FLUSH_WITHIN)
    refused = [reply.reason for reply in replies if not reply.ok]
    if refused:
        return PlainTextResponse(f"Flush cache failed: {'; '.join(refused)}.\n", 400)
    return PlainTextResponse(
        "Cache flushed.\nPlease check backend logs for more details. "
        "(When there are running or waiting requests, the operation will not be performed.)\n"
    )


@router.post("/pd_role_switch")
async def pd_role_switch(request: Request) -> Response:
    """A prefill becomes a decode, or the other way round; 400 with the reason and what is left of it."""
    instance: Instance = request.app.state.instance
    body = await responses.body(request, RoleSwitchBody)
    outcome = await instance.switch.turn(body.new_role.lower(), body.prepare_only)
    return responses.json(outcome.document(), 200 if outcome.success else 400)
