"""One running instance as its HTTP routes see it, and how it switches roles."""

from __future__ import annotations

import dataclasses
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.cluster.dp_controller import resolve
from pdctl.engine.frontend.refusal import HttpRefusal
from pdctl.engine.frontend.tokenizer_manager import EngineStatus
from pdctl.engine.ipc.messages import NOT_IDLE, UNHEALTHY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.engine_metrics import Metrics
    from pdctl.engine.frontend.intake import Intake
    from pdctl.engine.frontend.tokenizer import CheckpointTexts
    from pdctl.engine.frontend.tokenizer_manager import TokenizerManager
    from pdctl.engine.ipc.messages import Switched


log = logging.getLogger("pdctl.engine")

ROLES = ("prefill", "decode")
ASK_WITHIN = 10.0  # seconds for every DP group to say whether it could switch
TURN_WITHIN = 90.0  # seconds for every DP group to switch: a registration may take 60


@dataclass(frozen=True, slots=True)
class EngineInstance:
    args: ServerArgs
    checkpoint: CheckpointTexts
    intake: Intake
    manager: TokenizerManager
    metrics: Metrics
    ranks: Ranks
    switch: RoleSwitchCall
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each start-up phase, added when it ends

    @property
    def context_length(self) -> int:
        return self.intake.limits.context

    @property
    def now(self) -> ServerArgs:
        """`args` with the current role."""
        return dataclasses.replace(self.args, disaggregation_mode=self.manager.mode)

    @property
    def load_balance_method(self) -> str:
        return resolve(self.now)


def instance_of(request: Request) -> EngineInstance:
    """Return the instance that serves `request`."""
    instance: EngineInstance = request.app.state.instance
    return instance


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """The answer to a role switch. `safe_to_restore`: the instance serves as before; a router may use it again."""

    success: bool
    message: str
    old_role: str
    new_role: str
    safe_to_restore: bool = False

    def document(self) -> dict[str, object]:
        return dataclasses.asdict(self)


class RoleSwitchCall:
    """One role switch at a time. `forget` is called when the instance is no longer a prefill, to hide its ranks."""

    def __init__(self, args: ServerArgs, manager: TokenizerManager, forget: Callable[[], None]) -> None:
        self._args = args
        self._manager = manager
        self._forget = forget

    async def turn(self, role: str, prepare_only: bool) -> SwitchOutcome:
        manager = self._manager
        old = manager.mode
        refused = self._refused(role)
        if refused is None and role == old:
            return SwitchOutcome(True, "ok", old, role)
        if refused is None:
            manager.status = EngineStatus.SWITCHING
            try:
                refused = await self._take(role, prepare_only)
            finally:
                if manager.status is EngineStatus.SWITCHING:
                    manager.status = EngineStatus.UP
        if refused is not None:
            log.warning("PD role switch rejected (%s -> %s): %s", old, role, refused[0])  # sglang's line
            return SwitchOutcome(False, refused[0], old, role, refused[1])
        return SwitchOutcome(True, "ready", old, role, True) if prepare_only else SwitchOutcome(True, "ok", old, role)

    def _refused(self, role: str) -> tuple[str, bool] | None:
        """Return why no switch is attempted and whether the instance serves as before, in sglang's order and words."""
        manager = self._manager
        checks = (
            (not self._args.enable_pd_role_switch, "--enable-pd-role-switch is not set on this server", True),
            (manager.status is EngineStatus.BROKEN, UNHEALTHY, False),
            (manager.status is EngineStatus.SWITCHING, "another role switch is already in progress", False),
            (role not in ROLES, f"invalid new_role={role!r}", True),
            (manager.mode == "null", "instance is not running in PD disaggregation mode", True),
            (manager.status is not EngineStatus.UP, f"the instance is {manager.status.value}", False),
            (role != manager.mode and manager.running > 0, NOT_IDLE, True),
        )
        return next(((text, safe) for failed, text, safe in checks if failed), None)

    async def _take(self, role: str, prepare_only: bool) -> tuple[str, bool] | None:
        ready = await self._ask(role, ASK_WITHIN, commit=False)
        if ready is not None or prepare_only:
            return ready
        refused = await self._ask(role, TURN_WITHIN, commit=True)
        if refused is None:
            self._manager.become(role)
        elif not refused[1]:
            self._manager.status = EngineStatus.BROKEN
        if self._manager.mode != "prefill" or self._manager.status is EngineStatus.BROKEN:
            self._forget()
        return refused

    async def _ask(self, role: str, seconds: float, *, commit: bool) -> tuple[str, bool] | None:
        try:
            return _problem(await self._manager.switch(role, commit, seconds))
        except HttpRefusal as silence:
            return silence.message, not commit


def _problem(answers: Sequence[Switched]) -> tuple[str, bool] | None:
    """Return why groups refused or failed, and whether all groups still serve as before; None if none did."""
    failed = [answer for answer in answers if not answer.ok]
    if not failed:
        return None
    text = "; ".join(dict.fromkeys(answer.message for answer in failed))
    return text, all(answer.safe for answer in answers)
