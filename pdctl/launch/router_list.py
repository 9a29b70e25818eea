"""Keep the router's worker list right when instances move: remove the old address, add the new one.

A router that starts gets all current addresses on its command line.

`POST /workers` and `DELETE /workers/ID` are the same in sglang_router 0.3.2, smg 1.13.0 and pdctl's own router.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pdctl.errors import LimitError
from pdctl.fleet import http_client, router_probe
from pdctl.launch.deployment import ServerRole
from pdctl.launch.runtime import Told
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.launch.deployment import Spec

ASK = 5.0  # seconds one request may take
PATIENCE = 60.0  # seconds for the router to check a worker that was added
POLL = 0.2


class Credentials(NamedTuple):
    """What the router requires from clients that change its list."""

    key: str = ""
    secret: DeploymentSecret | None = None


NOBODY = Credentials()


def readdressed(spec: Spec, servers: Mapping[str, Spec]) -> tuple[str, ...]:
    """The router's command line with the current addresses. `servers`: planned URL → the server as it is now."""
    words: list[str] = []
    moved: Spec | None = None
    for word in spec.argv:
        if moved is not None and moved.bootstrap_port is not None and word.isdigit():
            words.append(str(moved.bootstrap_port))
        else:
            words.append(servers[word].url if word in servers else word)
        moved = servers.get(word)
    return tuple(words)


def forget(router_url: str, spec: Spec, credentials: Credentials = NOBODY) -> None:
    """Remove the server, so that it gets no new request. If the router does not answer, `announce` retries."""
    words = (router_url, spec.url, credentials)
    threading.Thread(target=_remove, args=words, name=f"forget {spec.name}", daemon=True).start()


def announce(
    router_url: str,
    spec: Spec,
    generation: int,
    old: tuple[str, ...],
    post: Callable[[Told], None],
    credentials: Credentials = NOBODY,
) -> None:
    """Add the server and remove its old addresses; post once it is listed as healthy, or why it is not."""

    def work() -> None:
        post(Told(spec.name, generation, _announce(router_url, spec, old, credentials)))

    threading.Thread(target=work, name=f"announce {spec.name}", daemon=True).start()


def _announce(router_url: str, spec: Spec, old: tuple[str, ...], credentials: Credentials) -> str:
    deadline = time.monotonic() + PATIENCE
    problem = "it was not asked"
    while time.monotonic() < deadline:
        try:
            state = router_probe.fetch(router_url, ASK, credentials.key)
        except LimitError as error:  # a limit of the supervisor's own process, which may pass
            problem = error.message
            time.sleep(POLL)
            continue
        known = {worker.url for worker in state.workers}
        for url in known.intersection(old):
            _remove(router_url, url, credentials)
        if state.lists(spec.url):
            return ""
        if not state.reached:
            problem = state.reason
        elif spec.url in known:
            problem = "it does not hold it healthy"
        else:
            problem = _add(router_url, spec, credentials) or "it does not list it"
        time.sleep(POLL)
    return f"the router at {router_url} does not take {spec.url}: {problem}"


def _add(router_url: str, spec: Spec, credentials: Credentials) -> str:
    body: dict[str, object] = {"url": spec.url, "worker_type": spec.role.value}
    if spec.role is ServerRole.PREFILL:
        body["bootstrap_port"] = spec.bootstrap_port
    answer = http_client.post(f"{router_url}/workers", body, ASK, key=credentials.key, secret=credentials.secret)
    return "" if answer.status in (200, 201, 202, 409) else f"POST /workers: {answer.status or answer.reason}"


def _remove(router_url: str, url: str, credentials: Credentials) -> None:
    """Remove a worker by the id it is listed under, because a URL cannot be part of the path."""
    listed = http_client.get(f"{router_url}/workers", ASK, key=credentials.key).json()
    entries = listed.get("workers") if isinstance(listed, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and str(entry.get("url", "")).rstrip("/") == url:
            http_client.delete(
                f"{router_url}/workers/{entry.get('id')}", ASK, key=credentials.key, secret=credentials.secret
            )
