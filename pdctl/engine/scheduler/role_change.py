"""A rank takes another role while nothing is in flight (sglang 0.5.23 disaggregation/role_switch.py).

Weights, KV pool and transport stay; queues, KV manager and prefix cache are those of the new role. The ranks of a DP
group say yes together, and become something else together; that all groups of an instance do is the HTTP process's
business, which asks each of them before it tells any (engine/frontend/instance.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.ipc.messages import NOT_IDLE, UNHEALTHY, Switched
from pdctl.engine.kv_link.room_failure import Failure
from pdctl.engine.scheduler.shared_failure import shared_failure
from pdctl.engine.transfer.transport import TransferError
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.ipc.messages import SwitchRole
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.role import Role

log = logging.getLogger("pdctl.engine")

REFUSED, FAILED = "role_switch_refused", "role_switch_failed"


class RoleSwitch:
    """Collective: every rank of a DP group calls `take` for the same order in the same turn."""

    def __init__(self, resources: Resources, become: Callable[[str], Role]) -> None:
        """`become` puts the new role together; it raises PdctlError, TransferError or OSError when it cannot be had."""
        self._resources = resources
        self._become = become
        self._broken = False

    def take(self, order: SwitchRole, role: Role) -> tuple[Role, Switched]:
        """The role from here on, and what the leader answers."""
        refusal = self._agreed(Failure(REFUSED, reason) if (reason := self._obstacle(role)) else None)
        if refusal is not None:
            return role, self._answer(order, refusal.message, safe=not self._broken)
        old = self._resources.args.disaggregation_mode
        if not order.commit:
            return role, self._answer(order, "", safe=True)
        if old == order.role:
            return role, self._answer(order, "", safe=False)
        new, failure = self._turn(order.role)
        failure = self._agreed(failure)
        if failure is None and new is not None:
            log.info("PD role switch succeeded: %s -> %s", old, order.role)  # sglang's line
            return new, self._answer(order, "", safe=False)
        self._broken = True
        why = failure.message if failure else "unknown"
        log.critical(  # sglang's line
            "PD role switch (%s -> %s) failed during teardown/rebuild; instance unhealthy: %s", old, order.role, why
        )
        return role, self._answer(order, f"role switch failed; instance unhealthy, restart required: {why}", safe=False)

    def _obstacle(self, role: Role) -> str:
        if self._broken:
            return UNHEALTHY
        queues = role.queues()
        return NOT_IDLE if queues.total or queues.draining else ""

    def _turn(self, mode: str) -> tuple[Role | None, Failure | None]:
        try:
            return self._become(mode), None
        except PdctlError as error:
            return None, Failure(FAILED, error.message)
        except (TransferError, OSError) as error:
            return None, Failure(FAILED, f"{type(error).__name__}: {error}")

    def _agreed(self, own: Failure | None) -> Failure | None:
        return shared_failure(self._resources.groups.replica, own)

    def _answer(self, order: SwitchRole, problem: str, *, safe: bool) -> Switched:
        return Switched(order.id, self._resources.dp_rank or 0, not problem, problem, safe)
