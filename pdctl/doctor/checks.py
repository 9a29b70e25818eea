"""All checks there are: of what is written, then of what is running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.doctor import release_faults
from pdctl.doctor.live import (
    bootstrap_servers,
    canary_results,
    engine_hosts,
    load,
    logs,
    pair_agreement,
    plan,
    router_ports,
    running_engines,
    running_router,
)
from pdctl.doctor.static import (
    arithmetic,
    bootstrap_addresses,
    capacity,
    environment_checks,
    kubernetes_checks,
    refused_flags,
    written_agreement,
)

if TYPE_CHECKING:
    from pdctl.doctor.check import Check

WRITTEN_CHECKS: tuple[Check, ...] = (  # need nothing but a topology, a manifest or a script
    *bootstrap_addresses.CHECKS,
    *kubernetes_checks.CHECKS,
    *written_agreement.CHECKS,
    *arithmetic.CHECKS,
    *refused_flags.CHECKS,
    *release_faults.WRITTEN,
    *capacity.CHECKS,
    *environment_checks.CHECKS,
)
RUNNING_CHECKS: tuple[Check, ...] = (  # look at engines, routers, this host or logs
    *router_ports.CHECKS,
    *bootstrap_servers.CHECKS,
    *running_engines.CHECKS,
    *running_router.CHECKS,
    *pair_agreement.CHECKS,
    *release_faults.RUNNING,
    *load.CHECKS,
    *engine_hosts.CHECKS,
    *plan.CHECKS,
    *canary_results.CHECKS,
    *logs.CHECKS,
)
CHECKS = (*WRITTEN_CHECKS, *RUNNING_CHECKS)
