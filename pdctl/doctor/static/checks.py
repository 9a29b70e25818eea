"""All checks that need nothing but a topology or a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.doctor.static import (
    addresses,
    agreement,
    arithmetic,
    bootstrap,
    capacity,
    kubernetes,
    network,
    refusals,
    releases,
    services,
    settings,
    upkeep,
)

if TYPE_CHECKING:
    from pdctl.doctor.check import Check

CHECKS: tuple[Check, ...] = (
    *bootstrap.CHECKS,
    *addresses.CHECKS,
    *services.CHECKS,
    *agreement.CHECKS,
    *arithmetic.CHECKS,
    *refusals.CHECKS,
    *releases.CHECKS,
    *network.CHECKS,
    *settings.CHECKS,
    *capacity.CHECKS,
    *upkeep.CHECKS,
    *kubernetes.CHECKS,
)
