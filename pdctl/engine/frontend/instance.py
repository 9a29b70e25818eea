"""One running instance as its HTTP routes see it."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.cluster.dp_controller import resolve

if TYPE_CHECKING:
    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.checkpoint import Checkpoint
    from pdctl.engine.frontend.engine_metrics import Metrics
    from pdctl.engine.frontend.intake import Intake
    from pdctl.engine.frontend.role_switch import RoleSwitch
    from pdctl.engine.frontend.tokenizer_manager import TokenizerManager


@dataclass(frozen=True, slots=True)
class Instance:
    args: ServerArgs
    checkpoint: Checkpoint
    intake: Intake
    manager: TokenizerManager
    metrics: Metrics
    ranks: Ranks
    switch: RoleSwitch
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each phase of the start, filled in as it ends

    @property
    def context_length(self) -> int:
        return self.intake.limits.context

    @property
    def now(self) -> ServerArgs:
        """`args` with the role it has now."""
        return dataclasses.replace(self.args, disaggregation_mode=self.manager.mode)

    @property
    def load_balance_method(self) -> str:
        return resolve(self.now)
