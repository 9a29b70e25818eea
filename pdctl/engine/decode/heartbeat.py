"""GET /health on every prefill instance a decode has contacted (sglang 0.5.23: every 5 s, lost after 2 misses)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.bootstrap_client import BootstrapError, attempt, health

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_config import DisaggConfig
    from pdctl.engine.kv_link.kv_loop import Loop
    from pdctl.engine.kv_link.timers import Timer

log = logging.getLogger("pdctl.engine")


class Heartbeat:
    """`lost` is called once, with the last miss's reason; the heartbeat stops then. Runs on the manager's loop."""

    def __init__(self, loop: Loop, config: DisaggConfig, address: str, lost: Callable[[str], None]) -> None:
        self._loop = loop
        self._config = config
        self._address = address
        self._lost = lost
        self._misses = 0
        self._timer: Timer | None = None
        self._running = False

    def start(self) -> None:
        if not self._running:
            self._running = True
            self._misses = 0
            self._schedule()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = self._loop.later(self._config.heartbeat_interval, self._ask)

    def _ask(self) -> None:
        address = self._address
        self._loop.submit(lambda: attempt(lambda: health(address)), self._answered)

    def _answered(self, error: BootstrapError | None) -> None:
        if not self._running:
            return
        self._misses = 0 if error is None else self._misses + 1
        if error is not None:
            log.info("Attempting to reconnect to %s...", self._address)
            if self._misses >= max(1, self._config.heartbeat_max_failure):
                self._running = False
                self._lost(f"{self._misses} heartbeats failed, the last: {error.message}")
                return
        self._schedule()
