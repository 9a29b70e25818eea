"""All shipped rows, in the order in which they are tried: among rows that begin alike, the narrower first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.pdctl import engine, launcher, pairs, router
from pdctl.engines.routers import mini_lb, sglang_router, smg
from pdctl.engines.sglang.logs import (
    access,
    batches,
    bootstrap,
    crashes,
    dp,
    engines,
    failures,
    fakes,
    handshake,
    health,
    life,
    others,
    requests,
    scheduling,
    settings,
    staging,
    transfer,
)

if TYPE_CHECKING:
    from pdctl.engines.row import Row

ROWS: tuple[Row, ...] = (
    *router.ROWS,
    *pairs.ROWS,
    *engine.ROWS,
    *launcher.ROWS,
    *failures.ROWS,
    *handshake.ROWS,
    *requests.ROWS,
    *batches.ROWS,
    *bootstrap.ROWS,
    *health.ROWS,
    *fakes.ROWS,
    *access.ROWS,
    *life.ROWS,
    *dp.ROWS,
    *crashes.ROWS,
    *scheduling.ROWS,
    *settings.ROWS,
    *transfer.ROWS,
    *staging.ROWS,
    *others.ROWS,
    *engines.ROWS,
    *smg.ROWS,
    *sglang_router.ROWS,
    *mini_lb.ROWS,
)
