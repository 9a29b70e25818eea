"""The logs of pdctl's own engine, router and launcher, and how pdctl's own requests are told from users'."""

from __future__ import annotations

from pdctl.engines.base import Adapter, Speaker
from pdctl.engines.pdctl import engine, pairs, router

ROUTER = Adapter(
    Speaker.PDCTL_ROUTER, (*router.ROWS, *pairs.ROWS), command=("python", "-m", "pdctl.router"), names_address=True
)
ENGINE = Adapter(
    Speaker.PDCTL_ENGINE,
    engine.ROWS,
    Speaker.SGLANG,
    at_info=engine.AT_INFO,
    names_every_room=True,
)
LAUNCHER = Adapter(Speaker.LAUNCHER, engine.LAUNCHER_ROWS)


PREFIX = "pdctl-canary-"


def rid(room: int) -> str:
    """The request id of doctor's canary with `room`, on both legs."""
    return f"{PREFIX}{room:x}"
