"""How many requests stand where, as logged and as /v1/loads tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Queues:
    """Requests in each queue, under the names of sglang's log lines and /v1/loads."""

    running: int = 0
    waiting: int = 0
    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    draining: int = 0
    retracted: int = 0

    @property
    def total(self) -> int:
        queued = self.waiting + self.bootstrap + self.inflight + self.prealloc + self.transfer + self.retracted
        return self.running + queued

    @property
    def remote(self) -> int:
        """Requests that wait for the other side: only these need polling."""
        return self.bootstrap + self.inflight + self.prealloc + self.transfer + self.draining
