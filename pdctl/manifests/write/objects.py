"""Parts that all manifests share: names, labels, metadata; and objects as readable YAML without anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable


Object = dict[str, Any]

INSTANCE = "app.kubernetes.io/instance"  # the deployment, by which status, logs and down select
COMPONENT = "app.kubernetes.io/component"  # prefill | decode | router
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "pdctl"
BOOTSTRAP_PORT = "sglang.ai/bootstrap-port"  # read by sglang-router 0.3.2 and smg 1.13.0 on a prefill's pod


def labels(name: str, component: str = "") -> dict[str, str]:
    """The labels of everything in the deployment `name`, or in one component of it."""
    found = {INSTANCE: name, MANAGED_BY: OURS}
    return {COMPONENT: component, **found} if component else found


def metadata(name: str, namespace: str, of: str, component: str = "") -> Object:
    return {"name": name, "namespace": namespace, "labels": labels(of, component)}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Write no anchors: readers would take them for a template's."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def document(value: Object) -> str:
    """One object as YAML, its keys in insertion order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True, default_flow_style=False)


def stream(objects: Iterable[Object]) -> str:
    return "".join(f"---\n{document(each)}" for each in objects)


def file_name(value: Object) -> str:
    """The object's file name, as `service-qwen-prefill-0.yaml`."""
    return f"{value['kind'].lower()}-{value['metadata']['name']}.yaml"
