"""A router as it is now: what kind, whom it routes to with which bootstrap port, and what its breakers say.

Seen on sglang_router 0.3.2 (also its --mini-lb), smg 1.13.0 and pdctl's own.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet import document, exposition, prober, router
from pdctl.fleet.address import Unanswered, join, parse
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.facts import Router
from pdctl.fleet.prober import Prober
from pdctl.fleet.server_info import PATHS as INFO_PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.fleet.facts import Reply
    from pdctl.fleet.http import Answer

READINESS, WORKERS, METRICS = "/readiness", "/workers", "/metrics"
SUMMARY = INFO_PATHS[1]  # of the router itself, or of workers behind it
LOOKS = (READINESS, WORKERS, METRICS, SUMMARY)
PATIENCE = 5.0  # seconds for one look
METRICS_PORT = 29000  # of sglang_router and smg, unless --prometheus-port says otherwise
OWN_SCHEMA = "pdctl.router."
# Keys of an entry of /workers that only one of them writes.
SMG_KEYS = frozenset(("labels", "models", "runtime_type", "pd_pairing", "http2"))
STATE, HEALTH = "smg_worker_cb_state", "smg_worker_health"
PAIR_STATE = "pdctl_router_breaker_state"
STATES = (0, 1, 2)


def probe_router(
    url: str, deadline: float, *, metrics_url: str = "", patience: float = PATIENCE, key: str = ""
) -> Router:
    """`metrics_url`: where its Prometheus text is, when that is neither its own port nor METRICS_PORT of its host."""
    probing = Prober(Deadline(deadline), patience, key)
    base = url.rstrip("/")
    answers = dict(zip(LOOKS, probing.ask_all(base, LOOKS), strict=True))
    replies = {path: prober.reply(path, answers[path]) for path in LOOKS if path != METRICS}
    readiness = replies[READINESS]
    if not any(answer.reached for answer in answers.values()):
        return Router(base, False, readiness.reason, readiness=readiness)
    workers = router.workers(replies[WORKERS].body) if replies[WORKERS].ok else None
    kind = "" if replies[WORKERS].ok and router.crowded(replies[WORKERS].body) else _kind(replies)
    info = {} if kind else _engine_info(base, probing, replies[SUMMARY])
    mode = document.excerpt(document.text(info.get("disaggregation_mode")))
    found = Router(
        base,
        True,
        "" if kind else _not_recognised(mode, replies, answers),
        kind=kind,
        ready=readiness.ok if readiness.status in (200, 503) else None,
        readiness=readiness,
        workers=workers,
        status=answers[WORKERS].status,
        mode=mode,
        bootstrap_port=document.integer(info.get("disaggregation_bootstrap_port")),
    )
    if metrics_url or not answers[METRICS].ok:
        return _with_metrics(found, _elsewhere(metrics_url or _default_metrics(base), probing), sure=bool(metrics_url))
    return _with_metrics(found, answers[METRICS].text, sure=True)


def _kind(replies: Mapping[str, Reply]) -> str:
    listed, ready = document.mapping(replies[WORKERS].body), document.mapping(replies[READINESS].body)
    summary = document.mapping(replies[SUMMARY].body)
    if any(document.text(body.get("schema")).startswith(OWN_SCHEMA) for body in (listed, ready)):
        return "pdctl"
    if "router_manager" in summary and "stats" in listed:
        return "sglang-router"
    entries = document.mappings(listed.get("workers"))
    # Without a worker yet; a body that merely has such a key is somebody else's.
    empty = listed.get("workers") == [] and bool(document.mapping(listed.get("stats")))
    if any(not SMG_KEYS.isdisjoint(entry) for entry in entries) or empty:
        return "smg"
    if any("metadata" in entry for entry in entries):
        return "sglang-router"
    both = isinstance(summary.get("prefill"), list) and isinstance(summary.get("decode"), list)
    return "mini_lb" if both else ""


def _engine_info(base: str, probing: Prober, summary: Reply) -> Mapping[str, object]:
    """What an engine says of itself, and no router; empty where this is none."""
    found = document.mapping(summary.body)
    if "disaggregation_mode" not in found:  # releases without the old path
        found = document.mapping(prober.reply(INFO_PATHS[0], probing.ask(base, INFO_PATHS[0])).body)
    return found if "disaggregation_mode" in found else {}


def _not_recognised(mode: str, replies: Mapping[str, Reply], answers: Mapping[str, Answer]) -> str:
    if mode and not answers[WORKERS].ok:
        return f"this is an engine (disaggregation_mode {mode}), not a router"
    if answers[WORKERS].status in (401, 403):
        return f"{answers[WORKERS].status} on {WORKERS}: the router asks for an API key"
    if answers[WORKERS].ok:
        return f"{WORKERS} {router.unlisted(replies[WORKERS].body) or 'lists no workers'}"
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


def _with_metrics(found: Router, text: str, *, sure: bool) -> Router:
    """Not `sure`: another router may hold the default port, so the text must name every worker of this one."""
    known = {worker.url for worker in found.workers or ()}
    named: set[str] = set()
    states: dict[str, int] = {}
    for name, written, value in exposition.samples(text):
        if name not in (STATE, PAIR_STATE, HEALTH):
            continue
        labels = exposition.labels(written)
        urls = [labels[label].rstrip("/") for label in ("worker", "prefill", "decode") if label in labels]
        named.update(urls)
        if name != HEALTH and value in STATES and known.issuperset(urls):
            states[" ".join(urls)] = int(value)
    if not text or not (sure or (known and known <= named)):
        return found
    return replace(
        found, metrics=exposition.totals(text), breakers=MappingProxyType(states), breakers_known=bool(states)
    )
