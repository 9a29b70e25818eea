"""What a router says: is it ready, and whom does it route to (sglang_router 0.3.2, smg 1.13.0 and pdctl's own)."""

from __future__ import annotations

from dataclasses import dataclass

from pdctl.fleet import http


@dataclass(frozen=True, slots=True)
class Worker:
    url: str
    role: str  # prefill, decode or regular
    healthy: bool
    bootstrap_port: int | None
    load: int


@dataclass(frozen=True, slots=True)
class RouterState:
    """`reason` is why it is not ready, in its own words or the network's."""

    reached: bool
    ready: bool
    workers: tuple[Worker, ...] = ()
    reason: str = ""

    def lists(self, url: str) -> bool:
        """Whether the worker at `url` is listed and held healthy."""
        return any(worker.url == url.rstrip("/") and worker.healthy for worker in self.workers)

    @property
    def in_flight(self) -> int:
        """Requests being answered: every one of them occupies exactly one decode (or regular) worker."""
        return sum(worker.load for worker in self.workers if worker.role != "prefill")


def fetch(url: str, timeout: float = 2.0) -> RouterState:
    readiness = http.get(url + "/readiness", timeout)
    if not readiness.reached:
        return RouterState(False, False, reason=readiness.reason)
    listed = http.get(url + "/workers", timeout).json()
    entries = listed.get("workers") if isinstance(listed, dict) else None
    workers = tuple(_worker(entry) for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()
    return RouterState(True, readiness.ok, workers, "" if readiness.ok else readiness.text.strip()[:200])


def _worker(entry: dict[str, object]) -> Worker:
    port, load = entry.get("bootstrap_port"), entry.get("load")
    return Worker(
        url=str(entry.get("url", "")).rstrip("/"),
        role=str(entry.get("worker_type", "regular")),
        healthy=bool(entry.get("is_healthy", False)),
        bootstrap_port=port if isinstance(port, int) else None,
        load=load if isinstance(load, int) else 0,
    )
