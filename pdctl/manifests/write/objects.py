"""Parts of manifests that everything shares: names, labels, metadata."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

INSTANCE = "app.kubernetes.io/instance"  # the deployment: what status, logs and down select by
COMPONENT = "app.kubernetes.io/component"  # prefill | decode | router
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "pdctl"
BOOTSTRAP_PORT = "sglang.ai/bootstrap-port"  # what sglang-router 0.3.2 and smg 1.13.0 read at a prefill's pod


def labels(name: str, component: str = "") -> dict[str, str]:
    """Of everything that belongs to the deployment `name`, or to one part of it."""
    found = {INSTANCE: name, MANAGED_BY: OURS}
    return {COMPONENT: component, **found} if component else found


def metadata(name: str, namespace: str, of: str, component: str = "") -> Object:
    return {"name": name, "namespace": namespace, "labels": labels(of, component)}
