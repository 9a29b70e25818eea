"""The logs of pdctl's own engine and router, and the lines its launcher adds to the log of any process."""

from __future__ import annotations

from pdctl.engines.base import Adapter
from pdctl.engines.pdctl import engine, launcher, pairs, router
from pdctl.engines.row import Speaker

ROUTER = Adapter(
    Speaker.PDCTL_ROUTER, (*router.ROWS, *pairs.ROWS), command=("python", "-m", "pdctl.router"), names_address=True
)
ENGINE = Adapter(
    Speaker.PDCTL_ENGINE, (*engine.ROWS, *launcher.ROWS), Speaker.SGLANG, at_info=engine.AT_INFO, names_every_room=True
)
