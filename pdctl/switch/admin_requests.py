"""What a switch sends: the switch itself to the instance, and removals and additions of workers to a router.

Routers: pdctl's own, smg 1.13.0, sglang-router 0.3.2 (all measured).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.sglang.endpoints import paths
from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet import bootstrap_probe, http_client, peer_json, router_probe
from pdctl.fleet.canary_probe import queues
from pdctl.fleet.observations import Endpoint
from pdctl.quick_definitions import NamedTuple
from pdctl.switch.switch_order import PREFILL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.fleet.observations import RouterWorker

(ROUTE,), (HEALTH,) = paths("role_switch"), paths("health")
MODEL_INFO, SERVER_INFO = paths("model_info")[0], paths("server_info")[0]
NOT_IDLE = "not idle"  # in sglang's refusal; try again
LOOK = 10.0  # seconds for one query
PATIENCE = 10.0  # seconds for one command
WORKERS = "/workers"


@dataclass(frozen=True, slots=True)
class Turned:
    """The answer to a switch. `known` False: there was none, so its present role is unknown."""

    known: bool
    success: bool = False
    message: str = ""
    safe_to_restore: bool = False

    @property
    def not_idle(self) -> bool:
        return self.known and not self.success and NOT_IDLE in self.message


class SwitchingInstance:
    """The HTTP side of one engine."""

    def __init__(self, name: str, url: str, key: str, secret: DeploymentSecret | None = None) -> None:
        self._endpoint = Endpoint(name, "", url)
        self._url = url
        self._key = key
        self._secret = secret

    def held(self, seconds: float) -> Mapping[str, float] | None:
        """What it still holds after at most `seconds`: {} if nothing, None if it cannot be read."""
        (found,) = queues((self._endpoint,), seconds, key=self._key)
        return found.left if found.read else None

    def turn(self, role: str, graph_memory: float | None, seconds: float) -> Turned:
        body: dict[str, object] = {"new_role": role}
        if graph_memory is not None:
            body["decode_cuda_graph_memory_gb"] = graph_memory
        answer = http_client.post(self._url + ROUTE, body, seconds, key=self._key, secret=self._secret)
        said = peer_json.mapping(answer.json())
        if not answer.connected and not answer.reached:
            return Turned(True, False, f"nobody takes the order: {answer.reason}")
        if not isinstance(said.get("success"), bool):
            # A refusal in another shape (404, 401) came before anything was done; silence and 5xx leave it open.
            told = f"{answer.status} {peer_json.complaint(answer.body)}" if answer.reached else answer.reason
            return Turned(400 <= answer.status < 500, False, told, 400 <= answer.status < 500)
        message = peer_json.excerpt(peer_json.text(said.get("message")))
        return Turned(True, said["success"] is True, message, said.get("safe_to_restore") is True)

    def role(self) -> str:
        """The present role if all sources agree, else ""."""
        model = peer_json.mapping(http_client.get(self._url + MODEL_INFO, LOOK, key=self._key).json())
        info = peer_json.mapping(http_client.get(self._url + SERVER_INFO, LOOK, key=self._key).json())
        told = {peer_json.text(model.get("disaggregation_mode")), peer_json.role(info)}
        return told.pop() if len(told) == 1 else ""

    def lacks(self, role: str, host: str, port: int | None, ranks: int) -> str:
        """What prevents it from serving as a `role`, "" if nothing does."""
        now = self.role()
        if now != role:
            return f"its role reads {now or 'differently in /model_info and /server_info'}"
        health = http_client.get(self._url + HEALTH, LOOK, key=self._key)
        if not health.ok:
            return f"{HEALTH} answered {health.status or health.reason}"
        if role != PREFILL or port is None:
            return ""
        known = bootstrap_probe.registration(host, port, ranks, LOOK)
        count = "" if known.registered is None else f" ({known.registered} of {ranks} ranks)"
        return "" if known.complete else f"its ranks are not all at {host}:{port}{count}: {known.reason}"


class WorkerEntry(NamedTuple):
    """A worker in a router's list; `id`: its name in the router's own routes."""

    id: str
    worker: RouterWorker


class Routing:
    """One router's list of workers."""

    def __init__(self, url: str, key: str, secret: DeploymentSecret | None = None) -> None:
        self.url = url.rstrip("/")
        self._key = key
        self._secret = secret

    def entry(self, url: str) -> WorkerEntry | None:
        """The entry of the worker at `url`, or None. Raise NotProbedError if the list cannot be read."""
        return next((entry for entry in self._entries()[0] if entry.worker.url == url), None)

    def in_flight(self, url: str) -> int:
        """How many requests a worker removed from the list still serves, if the router says so (pdctl's own does)."""
        leaving = peer_json.mappings(self._entries()[1].get("leaving"))
        return sum(peer_json.integer(one.get("in_flight")) or 0 for one in leaving if one.get("url") == url)

    def remove(self, entry: WorkerEntry) -> None:
        answer = http_client.delete(f"{self.url}{WORKERS}/{entry.id}", PATIENCE, key=self._key, secret=self._secret)
        if answer.status not in (200, 202, 204, 404):
            raise PdctlError(f"router {self.url}: DELETE {WORKERS}/{entry.id}: {_words(answer)}")

    def add(self, url: str, role: str, bootstrap_port: int | None) -> None:
        """Add a worker. For a prefill always give the port: without it both published routers send null to engines."""
        body: dict[str, object] = {"url": url, "worker_type": role}
        if bootstrap_port is not None:
            body["bootstrap_port"] = bootstrap_port
        answer = http_client.post(self.url + WORKERS, body, PATIENCE, key=self._key, secret=self._secret)
        if answer.status not in (200, 201, 202, 409):  # 409: it is already there; the list says in which role
            raise PdctlError(f"router {self.url}: POST {WORKERS} {body}: {_words(answer)}")

    def _entries(self) -> tuple[list[WorkerEntry], peer_json.Object]:
        answer = http_client.get(self.url + WORKERS, PATIENCE, key=self._key)
        body = answer.json()
        found = router_probe.listed_workers(body) if answer.ok else None
        if found is None:
            why = f"it {router_probe.unlisted(body)}" if answer.ok else _words(answer)
            raise NotProbedError(f"router {self.url}: GET {WORKERS}: {why}")
        whole = peer_json.mapping(body)
        ids = [peer_json.text(entry.get("id")) for entry in peer_json.mappings(whole.get("workers"))]
        return [WorkerEntry(name, worker) for name, worker in zip(ids, found, strict=True)], whole


def _words(answer: http_client.Answer) -> str:
    return f"{answer.status} {peer_json.complaint(answer.body)}".rstrip() if answer.reached else answer.reason
