"""Objects as YAML: the same text for the same objects, readable, without anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.manifests.write.objects import Object


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Anchors would be taken for a template's."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def document(value: Object) -> str:
    """One object, its keys in the order they were made in."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True, default_flow_style=False)


def stream(objects: Iterable[Object]) -> str:
    return "".join(f"---\n{document(each)}" for each in objects)


def file_name(value: Object) -> str:
    """`service-qwen-prefill-0.yaml`"""
    return f"{value['kind'].lower()}-{value['metadata']['name']}.yaml"
