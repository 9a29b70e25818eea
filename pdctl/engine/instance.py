"""One running instance as its HTTP routes see it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.dp_controller import resolve

if TYPE_CHECKING:
    from pdctl.engine.args import ServerArgs
    from pdctl.engine.checkpoint import Checkpoint
    from pdctl.engine.intake import Intake
    from pdctl.engine.manager import TokenizerManager
    from pdctl.engine.metrics import Metrics
    from pdctl.engine.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Instance:
    args: ServerArgs
    checkpoint: Checkpoint
    intake: Intake
    manager: TokenizerManager
    metrics: Metrics
    ranks: Ranks
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each phase of the start, filled in as it ends

    @property
    def context_length(self) -> int:
        return self.intake.limits.context

    @property
    def load_balance_method(self) -> str:
        return resolve(self.args)
