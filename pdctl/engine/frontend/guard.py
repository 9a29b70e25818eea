"""Stands before the engine's routes: who may ask what (http_auth.py), decided before a route sees the request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.client_text import word
from pdctl.engine.frontend import responses
from pdctl.engine.frontend.refusal import Refusal
from pdctl.http_auth import SIGNATURE, Level

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pdctl.http_auth import Gate

log = logging.getLogger("pdctl.engine")

OPEN = frozenset(("/health", "/health_generate", "/ready", "/metrics"))  # sglang leaves health and metrics open
ADMIN = frozenset(("/flush_cache", "/pd_role_switch"))
ABORT = "/abort_request"
MAX_SIGNED = 64 << 10  # bytes of a body that is read for its signature: orders are small


def level(path: str) -> Level:
    """What a request needs. /abort_request is a client's: what it reaches depends on who asks (control.py)."""
    return Level.OPEN if path in OPEN else Level.ADMIN if path in ADMIN else Level.CLIENT


class Guard:
    """ASGI around the application. `scope["state"]["admin"]` says whether the request may do what admins may."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            needed = level(scope["path"])
            decided = needed is Level.CLIENT and not self._gate.guards_clients and scope["path"] != ABORT
            scope.setdefault("state", {})["admin"] = False
            if not decided and needed is not Level.OPEN:
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
                    log.warning("Answered %s %s with 401: %s", scope["method"], word(scope["path"]), judged.refusal)
                    refused = responses.error(Refusal(401, judged.refusal))
                    refused.headers["WWW-Authenticate"] = "Bearer"
                    await refused(scope, receive, send)
                    return
                scope["state"]["admin"] = judged.admin
        await self.app(scope, receive, send)


NAMES = (b"authorization", SIGNATURE.encode())


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The body, and a `receive` that gives it again; of a longer one the beginning, which no signature fits."""
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
