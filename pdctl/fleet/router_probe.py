"""Probe a router: its kind, its workers with their bootstrap ports, and the state of its circuit breakers.

Covers sglang_router 0.3.2, smg 1.13.0 and pdctl's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.kinds import router_answering
from pdctl.fleet import http_client, peer_json, prober, prometheus_text
from pdctl.fleet.address import Unanswered, join, parse, without_userinfo
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.engine_probe import PATHS as INFO_PATHS
from pdctl.fleet.observations import ObservedRouter, RouterWorker
from pdctl.fleet.prober import Prober

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.fleet.http_client import Answer
    from pdctl.fleet.observations import Reply
    from pdctl.fleet.peer_json import Object

LOCKED = re.compile(r"answered (?:401\b|403\b.*\bAPI key\b)", re.IGNORECASE)
MAX_WORKERS = 2048  # of one router; a longer list is not trusted, because each worker would be probed, kept and judged
ONE_BY_ONE = 10.0  # seconds for a router that queries all its workers before it answers
READINESS, WORKERS, METRICS = "/readiness", "/workers", "/metrics"
SUMMARY = INFO_PATHS[1]  # about the router itself, or about the workers behind it
LOOKS = (READINESS, WORKERS, METRICS, SUMMARY)
PATIENCE = 5.0  # seconds for one request
METRICS_PORT = 29000  # default --prometheus-port of sglang_router and smg
STATE, HEALTH = "smg_worker_cb_state", "smg_worker_health"
PAIR_STATE = "pdctl_router_breaker_state"
STATES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class RouterState:
    """`reason`: why it is not ready, in the router's or the network's words."""

    reached: bool
    ready: bool
    workers: tuple[RouterWorker, ...] = ()
    reason: str = ""
    unauthorized: bool = False  # it requires a key, which we do not have, to list its workers

    def lists(self, url: str) -> bool:
        """Whether the worker at `url` is listed as healthy."""
        return any(worker.url == url.rstrip("/") and worker.healthy for worker in self.workers)

    @property
    def locked_out(self) -> str:
        """A sentence about the first worker that refuses the router's API key, "" if none does."""
        found = next((one for one in self.workers if not one.healthy and LOCKED.search(one.reason)), None)
        return f"{found.url} does not take the router's API key, or wants one: {found.reason}" if found else ""

    @property
    def in_flight(self) -> int:
        """The number of requests in flight; each occupies exactly one decode (or regular) worker."""
        return sum(worker.load for worker in self.workers if worker.role != "prefill")


def fetch(url: str, timeout: float = 2.0, key: str = "") -> RouterState:
    """The router's state. `key`: bearer token for a router that requires one."""
    readiness = http_client.get(url + "/readiness", timeout, key=key)
    if not readiness.reached:
        return RouterState(False, False, reason=readiness.reason)
    if readiness.status == 404:
        return _mini_lb(url, timeout, key)
    if prober.wants_key(readiness.status, readiness.headers, readiness.body):
        return RouterState(True, False, (), refused("/readiness", readiness, key), unauthorized=True)
    answer = http_client.get(url + "/workers", timeout, key=key)
    if prober.wants_key(answer.status, answer.headers, answer.body):
        return RouterState(True, readiness.ok, (), refused("/workers", answer, key), unauthorized=True)
    if answer.status == prober.FORBIDDEN:
        return RouterState(True, False, reason=f"/workers answers 403: {prober.refusal(answer)}")
    told = answer.json()
    if crowded(told):
        return RouterState(True, False, reason=f"/workers {unlisted(told)}")
    listed = listed_workers(told) or ()
    return RouterState(True, readiness.ok, listed, "" if readiness.ok else _reason_not_ready(readiness))


def _reason_not_ready(readiness: http_client.Answer) -> str:
    """Why it is not ready: `reasons` (pdctl), `reason` (sglang_router, smg), `status`; else the answer, truncated."""
    told = peer_json.mapping(readiness.json())
    listed = told.get("reasons")
    reasons = [peer_json.excerpt(one) for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    short = "; ".join(reasons) or peer_json.text(told.get("reason")) or peer_json.text(told.get("status"))
    return peer_json.excerpt(short) if short else peer_json.complaint(readiness.body)


def refused(path: str, answer: http_client.Answer, key: str) -> str:
    """A sentence that a server refuses the API key, or requires one, and what to do about it."""
    if not key:
        return f"{path} answers {answer.status}: it needs an API key; name it in the topology: security.api-key-file"
    told = peer_json.quoted(peer_json.complaint(answer.body))
    return f"{path} answers {answer.status}: it does not take the API key of the topology ({told})"


def _mini_lb(url: str, timeout: float, key: str) -> RouterState:
    """sglang_router --mini-lb has neither /readiness nor /workers; this path queries its workers one by one."""
    answer = http_client.get(url + "/get_server_info", max(timeout, ONE_BY_ONE), key=key)
    body = peer_json.mapping(answer.json())
    entries = [(entry, role) for role in ("prefill", "decode") for entry in peer_json.mappings(body.get(role))]
    if crowd := _crowd(len(entries)):
        return RouterState(True, False, reason=f"/get_server_info {crowd}")
    listed = tuple(_worker_of_info(entry, role) for entry, role in entries)
    if not answer.ok or not listed:
        return RouterState(True, False, reason=f"/readiness: 404, /get_server_info: {answer.status or answer.reason}")
    return RouterState(True, True, listed)


def _worker_of_info(info: Object, role: str) -> RouterWorker:
    """A worker by its own server info; mini_lb does not reveal the bootstrap port it holds for it."""
    host = peer_json.excerpt(peer_json.text(info.get("host")))
    return RouterWorker(
        url=join(host, peer_json.integer(info.get("port")) or 0),
        role=role,
        healthy=True,
        bootstrap_port=None,
        bootstrap_known=False,
        mode=peer_json.role(info),
        load=0,
    )


def listed_workers(body: object) -> tuple[RouterWorker, ...] | None:
    """The entries of GET /workers; None if `body` is not such a list (`unlisted` says why)."""
    if unlisted(body):
        return None
    return tuple(map(_worker, peer_json.mappings(peer_json.mapping(body)["workers"])))


def unlisted(body: object) -> str:
    """Why `body` is not a list of workers, "" if it is one."""
    entries = peer_json.mapping(body).get("workers")
    if not isinstance(entries, list):
        return "lists no workers"
    return _crowd(len(entries))


def crowded(body: object) -> bool:
    """Whether `body` lists more workers than a router can have."""
    entries = peer_json.mapping(body).get("workers")
    return isinstance(entries, list) and bool(_crowd(len(entries)))


def _crowd(count: int) -> str:
    return f"lists {count} workers, and more than {MAX_WORKERS} are not believed" if count > MAX_WORKERS else ""


def _worker(entry: Object) -> RouterWorker:
    # sglang_router keeps what the worker reported in `metadata`, smg in `labels`.
    told = entry.get("metadata") or entry.get("labels")
    return RouterWorker(
        url=without_userinfo(peer_json.excerpt(peer_json.text(entry.get("url")))).rstrip("/"),
        role=peer_json.quoted(peer_json.text(entry.get("worker_type"))) or "regular",
        healthy=entry.get("is_healthy") is True,
        bootstrap_port=peer_json.integer(entry.get("bootstrap_port")),
        bootstrap_known="bootstrap_port" in entry,
        mode=peer_json.quoted(peer_json.text(peer_json.mapping(told).get("disaggregation_mode"))),
        load=peer_json.integer(entry.get("load")) or 0,
        reason=peer_json.excerpt(peer_json.text(entry.get("reason"))),
        health_known=isinstance(entry.get("is_healthy"), bool),
    )


def probe_router(
    url: str, deadline: float, *, metrics_url: str = "", patience: float = PATIENCE, key: str = ""
) -> ObservedRouter:
    """The router as observed. `metrics_url`: of its Prometheus text, if on neither its port nor METRICS_PORT."""
    probing = Prober(Deadline(deadline), patience, key)
    base = url.rstrip("/")
    answers = dict(zip(LOOKS, probing.ask_all(base, LOOKS), strict=True))
    replies = {path: prober.reply(path, answers[path]) for path in LOOKS if path != METRICS}
    readiness = replies[READINESS]
    if not any(answer.reached for answer in answers.values()):
        return ObservedRouter(base, False, readiness.reason, readiness=readiness)
    workers = listed_workers(replies[WORKERS].body) if replies[WORKERS].ok else None
    kind = "" if replies[WORKERS].ok and crowded(replies[WORKERS].body) else _kind(replies)
    info = {} if kind else _engine_info(base, probing, replies[SUMMARY])
    mode = peer_json.quoted(peer_json.text(info.get("disaggregation_mode")))
    found = ObservedRouter(
        base,
        True,
        "" if kind else _not_recognised(mode, replies, answers),
        kind=kind,
        ready=readiness.ok if readiness.status in (200, 503) else None,
        readiness=readiness,
        workers=workers,
        status=answers[WORKERS].status,
        wants_key=replies[WORKERS].wants_key,
        mode=mode,
        bootstrap_port=peer_json.integer(info.get("disaggregation_bootstrap_port")),
    )
    if metrics_url or not answers[METRICS].ok:
        return _with_metrics(found, _elsewhere(metrics_url or _default_metrics(base), probing), sure=bool(metrics_url))
    return _with_metrics(found, answers[METRICS].text, sure=True)


def _kind(replies: Mapping[str, Reply]) -> str:
    return router_answering(*(peer_json.mapping(replies[path].body) for path in (WORKERS, READINESS, SUMMARY)))


def _engine_info(base: str, probing: Prober, summary: Reply) -> Mapping[str, object]:
    """The server info if this is an engine and not a router, else {}."""
    found = peer_json.mapping(summary.body)
    if "disaggregation_mode" not in found:  # releases without the old path
        found = peer_json.mapping(prober.reply(INFO_PATHS[0], probing.ask(base, INFO_PATHS[0])).body)
    return found if "disaggregation_mode" in found else {}


def _not_recognised(mode: str, replies: Mapping[str, Reply], answers: Mapping[str, Answer]) -> str:
    if mode and not answers[WORKERS].ok:
        return f"this is an engine (disaggregation_mode {mode}), not a router"
    if replies[WORKERS].wants_key:
        return f"{answers[WORKERS].status} on {WORKERS}: the router asks for an API key"
    if answers[WORKERS].ok:
        return f"{WORKERS} {unlisted(replies[WORKERS].body) or 'lists no workers'}"
    if "location" in answers[WORKERS].headers:
        return f"{WORKERS} {replies[WORKERS].reason}"
    return f"{answers[WORKERS].status} on {WORKERS}" if answers[WORKERS].reached else answers[WORKERS].reason


def _default_metrics(base: str) -> str:
    try:
        return join(parse(base).host, METRICS_PORT)
    except Unanswered:
        return base


def _elsewhere(url: str, probing: Prober) -> str:
    answer = probing.ask(url.removesuffix(METRICS).rstrip("/"), METRICS)
    return answer.text if answer.ok else ""


def _with_metrics(found: ObservedRouter, text: str, *, sure: bool) -> ObservedRouter:
    """`found` with its breakers. Not `sure`: another router may have the default port, so all workers must be named."""
    known = {worker.url for worker in found.workers or ()}
    named: set[str] = set()
    states: dict[str, int] = {}
    for name, written, value in prometheus_text.samples(text):
        if name not in (STATE, PAIR_STATE, HEALTH):
            continue
        labels = prometheus_text.labels(written)
        urls = [labels[label].rstrip("/") for label in ("worker", "prefill", "decode") if label in labels]
        named.update(urls)
        if name != HEALTH and value in STATES and known.issuperset(urls):
            states[" ".join(urls)] = int(value)
    if not text or not (sure or (known and known <= named)):
        return found
    return replace(
        found, metrics=prometheus_text.totals(text), breakers=MappingProxyType(states), breakers_known=bool(states)
    )
