"""Taking a worker out of a router and putting it back: pdctl's own, smg 1.13.0, sglang-router 0.3.2 (all measured).

All three take POST and DELETE on /workers and answer 202 before they have acted, so that only their list tells what
they did: DELETE is done when the worker is gone from it (smg: after 5 s, whatever is in flight), POST when it is there
and healthy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet import document, http, router

if TYPE_CHECKING:
    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.fleet.facts import RouterWorker

PATIENCE = 10.0  # seconds for one call
WORKERS = "/workers"


class Entry(NamedTuple):
    """`id` is what the router's own routes call it."""

    id: str
    worker: RouterWorker


class Routing:
    """One router's list of workers."""

    def __init__(self, url: str, key: str, secret: DeploymentSecret | None = None) -> None:
        self.url = url.rstrip("/")
        self._key = key
        self._secret = secret

    def entry(self, url: str) -> Entry | None:
        """Raises NotProbedError when there is no list to be had."""
        return next((entry for entry in self._entries()[0] if entry.worker.url == url), None)

    def in_flight(self, url: str) -> int:
        """Requests that a worker which is gone from the list still answers, where the router says so (pdctl's own)."""
        leaving = document.mappings(self._entries()[1].get("leaving"))
        return sum(document.integer(one.get("in_flight")) or 0 for one in leaving if one.get("url") == url)

    def remove(self, entry: Entry) -> None:
        answer = http.delete(f"{self.url}{WORKERS}/{entry.id}", PATIENCE, key=self._key, secret=self._secret)
        if answer.status not in (200, 202, 204, 404):
            raise PdctlError(f"router {self.url}: DELETE {WORKERS}/{entry.id}: {_words(answer)}")

    def add(self, url: str, role: str, bootstrap_port: int | None) -> None:
        """The port is always given for a prefill: without it both published routers send null to the engines."""
        body: dict[str, object] = {"url": url, "worker_type": role}
        if bootstrap_port is not None:
            body["bootstrap_port"] = bootstrap_port
        answer = http.post(self.url + WORKERS, body, PATIENCE, key=self._key, secret=self._secret)
        if answer.status not in (200, 201, 202, 409):  # 409: it is there already; the list tells as what
            raise PdctlError(f"router {self.url}: POST {WORKERS} {body}: {_words(answer)}")

    def _entries(self) -> tuple[list[Entry], document.Object]:
        answer = http.get(self.url + WORKERS, PATIENCE, key=self._key)
        body = answer.json()
        found = router.workers(body) if answer.ok else None
        if found is None:
            why = f"it {router.unlisted(body)}" if answer.ok else _words(answer)
            raise NotProbedError(f"router {self.url}: GET {WORKERS}: {why}")
        whole = document.mapping(body)
        ids = [document.text(entry.get("id")) for entry in document.mappings(whole.get("workers"))]
        return [Entry(name, worker) for name, worker in zip(ids, found, strict=True)], whole


def _words(answer: http.Answer) -> str:
    return f"{answer.status} {document.complaint(answer.body)}".rstrip() if answer.reached else answer.reason
