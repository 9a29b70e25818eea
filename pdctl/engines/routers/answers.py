"""Which router it is, by what it answers: sglang_router 0.3.2, smg 1.13.0, SGLang's mini_lb and pdctl's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]  # of a JSON document

OWN_SCHEMA = "pdctl.router."
# Keys of an entry of /workers that only smg writes.
SMG_KEYS = frozenset(("labels", "models", "runtime_type", "pd_pairing", "http2"))


def kind(workers: Object, readiness: Object, summary: Object) -> str:
    """As in `router.kind`, mini_lb in SGLang's spelling; "" for none of them. Each: the body that was answered, or {}.

    workers: of /workers. readiness: of /readiness. summary: of /get_server_info, which mini_lb lists its workers at.
    """
    if any(str(body.get("schema")).startswith(OWN_SCHEMA) for body in (workers, readiness)):
        return "pdctl"
    if "router_manager" in summary and "stats" in workers:
        return "sglang-router"
    listed = workers.get("workers")
    entries = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    stats = workers.get("stats")
    # Without a worker yet; a body that merely has such a key is somebody else's.
    empty = listed == [] and isinstance(stats, Mapping) and bool(stats)
    if any(not SMG_KEYS.isdisjoint(entry) for entry in entries) or empty:
        return "smg"
    if any("metadata" in entry for entry in entries):
        return "sglang-router"
    both = isinstance(summary.get("prefill"), list) and isinstance(summary.get("decode"), list)
    return "mini_lb" if both else ""
