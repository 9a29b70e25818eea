"""What a router says: is it ready, and whom does it route to (sglang_router 0.3.2, smg 1.13.0 and pdctl's own)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.fleet import document, http
from pdctl.fleet.facts import RouterWorker

if TYPE_CHECKING:
    from pdctl.fleet.document import Object


UNAUTHORIZED = (401, 403)
LOCKED = re.compile(r"answered (?:401|403)\b")
MAX_WORKERS = 2048  # of one router; whoever names more is not believed: each would be asked, kept and judged
ONE_BY_ONE = 10.0  # seconds for a router that asks all its workers before it answers


@dataclass(frozen=True, slots=True)
class RouterState:
    """`reason` is why it is not ready, in its own words or the network's."""

    reached: bool
    ready: bool
    workers: tuple[RouterWorker, ...] = ()
    reason: str = ""
    unauthorized: bool = False  # it does not tell its workers without a key that we do not have

    def lists(self, url: str) -> bool:
        """Whether the worker at `url` is listed and held healthy."""
        return any(worker.url == url.rstrip("/") and worker.healthy for worker in self.workers)

    @property
    def locked_out(self) -> str:
        """Why the router may not ask its workers: one of them wants another API key than the router has. In words."""
        found = next((one for one in self.workers if not one.healthy and LOCKED.search(one.reason)), None)
        return f"{found.url} does not take the router's API key, or wants one: {found.reason}" if found else ""

    @property
    def in_flight(self) -> int:
        """Requests being answered: every one of them occupies exactly one decode (or regular) worker."""
        return sum(worker.load for worker in self.workers if worker.role != "prefill")


def fetch(url: str, timeout: float = 2.0, key: str = "") -> RouterState:
    """`key`: bearer token for a router that asks for one."""
    readiness = http.get(url + "/readiness", timeout, key=key)
    if not readiness.reached:
        return RouterState(False, False, reason=readiness.reason)
    if readiness.status == 404:
        return _mini_lb(url, timeout, key)
    if readiness.status in UNAUTHORIZED:
        return RouterState(True, False, (), refused("/readiness", readiness, key), unauthorized=True)
    answer = http.get(url + "/workers", timeout, key=key)
    if answer.status in UNAUTHORIZED:
        return RouterState(True, readiness.ok, (), refused("/workers", answer, key), unauthorized=True)
    told = answer.json()
    if crowded(told):
        return RouterState(True, False, reason=f"/workers {unlisted(told)}")
    listed = workers(told) or ()
    return RouterState(True, readiness.ok, listed, "" if readiness.ok else _why(readiness))


def _why(readiness: http.Answer) -> str:
    """Why it is not ready: `reasons` (pdctl's own), `reason` (sglang_router, smg), `status`; else what came, cut."""
    told = document.mapping(readiness.json())
    listed = told.get("reasons")
    reasons = [document.excerpt(one) for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    short = "; ".join(reasons) or document.text(told.get("reason")) or document.text(told.get("status"))
    return document.excerpt(short) if short else document.complaint(readiness.body)


def refused(path: str, answer: http.Answer, key: str) -> str:
    """In words: a server that asks for a key, and what to do about it."""
    if not key:
        return f"{path} answers {answer.status}: it needs an API key; name it in the topology: security.api-key-file"
    told = document.complaint(answer.body)
    return f"{path} answers {answer.status}: it does not take the API key of the topology ({told})"


def _mini_lb(url: str, timeout: float, key: str) -> RouterState:
    """sglang_router --mini-lb has neither /readiness nor /workers; this path asks its workers, one after the other."""
    answer = http.get(url + "/get_server_info", max(timeout, ONE_BY_ONE), key=key)
    body = document.mapping(answer.json())
    entries = [(entry, role) for role in ("prefill", "decode") for entry in document.mappings(body.get(role))]
    if crowd := _crowd(len(entries)):
        return RouterState(True, False, reason=f"/get_server_info {crowd}")
    listed = tuple(_told(entry, role) for entry, role in entries)
    if not answer.ok or not listed:
        return RouterState(True, False, reason=f"/readiness: 404, /get_server_info: {answer.status or answer.reason}")
    return RouterState(True, True, listed)


def _told(info: Object, role: str) -> RouterWorker:
    """A worker by its own server info; what bootstrap port mini_lb holds for it, it tells nobody."""
    host = document.text(info.get("host"))
    return RouterWorker(
        url=f"http://{f'[{host}]' if ':' in host else host}:{document.integer(info.get('port')) or 0}",
        role=role,
        healthy=True,
        bootstrap_port=None,
        bootstrap_known=False,
        mode=document.role(info),
        load=0,
    )


def workers(body: object) -> tuple[RouterWorker, ...] | None:
    """The entries of GET /workers; None when `body` is no such list (`unlisted` says why)."""
    if unlisted(body):
        return None
    return tuple(map(_worker, document.mappings(document.mapping(body)["workers"])))


def unlisted(body: object) -> str:
    """Why `body` is no list of workers, "" when it is one."""
    entries = document.mapping(body).get("workers")
    if not isinstance(entries, list):
        return "lists no workers"
    return _crowd(len(entries))


def crowded(body: object) -> bool:
    """Whether `body` lists more workers than a router can have."""
    entries = document.mapping(body).get("workers")
    return isinstance(entries, list) and bool(_crowd(len(entries)))


def _crowd(count: int) -> str:
    return f"lists {count} workers, and more than {MAX_WORKERS} are not believed" if count > MAX_WORKERS else ""


def _worker(entry: Object) -> RouterWorker:
    # sglang_router keeps what the worker told in `metadata`, smg in `labels`.
    told = entry.get("metadata") or entry.get("labels")
    return RouterWorker(
        url=document.text(entry.get("url")).rstrip("/"),
        role=document.text(entry.get("worker_type")) or "regular",
        healthy=entry.get("is_healthy") is True,
        bootstrap_port=document.integer(entry.get("bootstrap_port")),
        bootstrap_known="bootstrap_port" in entry,
        mode=document.text(document.mapping(told).get("disaggregation_mode")),
        load=document.integer(entry.get("load")) or 0,
        reason=document.excerpt(document.text(entry.get("reason"))),
    )
