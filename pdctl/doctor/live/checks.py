"""All checks of what is running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.doctor.live import (
    bootstraps,
    canary,
    devices,
    engines,
    environment,
    load,
    logs,
    nulls,
    pairs,
    plan,
    ports,
    releases,
    router,
)

if TYPE_CHECKING:
    from pdctl.doctor.check import Check

CHECKS: tuple[Check, ...] = (
    *nulls.CHECKS,
    *ports.CHECKS,
    *bootstraps.CHECKS,
    *engines.CHECKS,
    *router.CHECKS,
    *pairs.CHECKS,
    *releases.CHECKS,
    *load.CHECKS,
    *devices.CHECKS,
    *environment.CHECKS,
    *plan.CHECKS,
    *canary.CHECKS,
    *logs.CHECKS,
)
