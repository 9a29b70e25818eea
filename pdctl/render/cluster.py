"""A deployment in a Kubernetes cluster as tables and JSON."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from pdctl.launch.verdict import span
from pdctl.render.status import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.pods import Pod
    from pdctl.render.term import Term

STATUS = "pdctl.cluster-status/1"
HEAD = ("INSTANCE", "NODE", "POD", "READY", "RESTARTS", "HOST", "MISSING")


def waiting(missing: Sequence[str], term: Term) -> None:
    for line in missing:
        term.write(f"  waiting for {line}" if not line.startswith(" ") else f"  {line}")


def serving(of: Cluster, found: Sequence[Pod], term: Term) -> None:
    where = f"--namespace {of.namespace}" + (f" --context {of.context}" if of.context else "")
    term.write(f"{of.name} serves at {of.url} (inside the cluster), {len(found)} pods ready")
    term.write(f"  kubectl {where} port-forward service/{of.name}-router {of.port}:{of.port}")
    term.write(f"  pdctl doctor --router http://127.0.0.1:{of.port}")
    term.write(f"  pdctl down {of.name}")


def status(of: Cluster, found: Sequence[Pod], missing: Sequence[str], term: Term) -> None:
    state = term.style("starting", "yellow") if missing else term.style("serving", "green")
    age = span(time.time() - of.created)
    term.write(f"{of.name}: {state} at {of.url}, {of.flavour} in {of.place}, applied {age} ago")
    for line in missing:
        if not line.startswith(" "):
            term.write(f"  {line}")
    rows = [
        (
            pod.instance,
            str(pod.node),
            pod.name,
            "yes" if pod.ready else "no",
            str(pod.restarts),
            pod.host or "-",
            term.style(pod.missing, "red") if pod.missing else "-",
        )
        for pod in found
    ]
    table(HEAD, rows, term)


def status_json(of: Cluster, found: Sequence[Pod], missing: Sequence[str]) -> str:
    document = {
        "schema": STATUS,
        **of._asdict(),
        "url": of.url,
        "ready": not missing,
        "missing": [line.strip() for line in missing],
        "pods_found": [pod._asdict() for pod in found],
    }
    return json.dumps(document, indent=2)
