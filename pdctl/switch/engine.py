"""The instance that switches: whether it is idle, the switch itself, and what it is afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.sglang.http import paths
from pdctl.fleet import bootstrap, document, http
from pdctl.fleet.facts import Endpoint
from pdctl.fleet.queues import queues
from pdctl.switch.order import PREFILL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.deployment_secret import DeploymentSecret

(ROUTE,), (HEALTH,) = paths("role_switch"), paths("health")
MODEL_INFO, SERVER_INFO = paths("model_info")[0], paths("server_info")[0]
NOT_IDLE = "not idle"  # in sglang's refusal: try again
LOOK = 10.0  # seconds for one look


@dataclass(frozen=True, slots=True)
class Turned:
    """The answer to a switch. `known` False: none came, so that nobody knows what role it has now."""

    known: bool
    success: bool = False
    message: str = ""
    safe_to_restore: bool = False

    @property
    def not_idle(self) -> bool:
        return self.known and not self.success and NOT_IDLE in self.message


class Instance:
    """The HTTP side of one engine."""

    def __init__(self, name: str, url: str, key: str, secret: DeploymentSecret | None = None) -> None:
        self._endpoint = Endpoint(name, "", url)
        self._url = url
        self._key = key
        self._secret = secret

    def held(self, seconds: float) -> Mapping[str, float] | None:
        """What it still holds after at most `seconds`: empty when it holds nothing; None when it cannot be read."""
        (found,) = queues((self._endpoint,), seconds, key=self._key)
        return found.left if found.read else None

    def turn(self, role: str, graph_memory: float | None, seconds: float) -> Turned:
        body: dict[str, object] = {"new_role": role}
        if graph_memory is not None:
            body["decode_cuda_graph_memory_gb"] = graph_memory
        answer = http.post(self._url + ROUTE, body, seconds, key=self._key, secret=self._secret)
        said = document.mapping(answer.json())
        if not answer.connected and not answer.reached:
            return Turned(True, False, f"nobody takes the order: {answer.reason}")
        if not isinstance(said.get("success"), bool):
            # A refusal in another shape (404, 401) came before anything was done; silence and 5xx say nothing.
            told = f"{answer.status} {document.complaint(answer.body)}" if answer.reached else answer.reason
            return Turned(400 <= answer.status < 500, False, told, 400 <= answer.status < 500)
        message = document.excerpt(document.text(said.get("message")))
        return Turned(True, said["success"] is True, message, said.get("safe_to_restore") is True)

    def role(self) -> str:
        """As it is now, where all that tell it agree; else ""."""
        model = document.mapping(http.get(self._url + MODEL_INFO, LOOK, key=self._key).json())
        info = document.mapping(http.get(self._url + SERVER_INFO, LOOK, key=self._key).json())
        told = {document.text(model.get("disaggregation_mode")), document.role(info)}
        return told.pop() if len(told) == 1 else ""

    def lacks(self, role: str, host: str, port: int | None, ranks: int) -> str:
        """What keeps it from serving as a `role`; empty when nothing does."""
        now = self.role()
        if now != role:
            return f"its role reads {now or 'differently in /model_info and /server_info'}"
        health = http.get(self._url + HEALTH, LOOK, key=self._key)
        if not health.ok:
            return f"{HEALTH} answered {health.status or health.reason}"
        if role != PREFILL or port is None:
            return ""
        known = bootstrap.registration(host, port, ranks, LOOK)
        count = "" if known.registered is None else f" ({known.registered} of {ranks} ranks)"
        return "" if known.complete else f"its ranks are not all at {host}:{port}{count}: {known.reason}"
