"""Texts imported, as values: what a test looks at."""

from __future__ import annotations

from textwrap import dedent
from typing import Any, NamedTuple

import yaml

from pdctl.imports.found import Sort
from pdctl.imports.importer import import_texts
from pdctl.layout.instance_plan import Plan
from pdctl.layout.planner import plan_topology
from pdctl.topology import resolve

PREFILL = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill --port 30000"
DECODE = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode decode --port 30001"
ROUTER = "python3 -m sglang_router.launch_router --pd-disaggregation"


class Made(NamedTuple):
    """`values`: the topology as written. `notes`: (sort, place, text)."""

    text: str
    values: dict[str, Any]
    notes: tuple[tuple[str, str, str], ...]

    def said(self, sort: Sort) -> list[str]:
        return [f"{place}: {text}" if place else text for kind, place, text in self.notes if kind == sort.value]

    def plan(self) -> Plan:
        """What `pdctl plan` makes of it, after `pdctl topology check`."""
        return plan_topology(resolve.of_text(self.text, "imported.yaml", {}).topology)


def imported(*texts: str, names: tuple[str, ...] = (), known: dict[str, str] | None = None) -> Made:
    """Each text a file; they are called a.sh, b.sh, … unless `names` says otherwise."""
    named = [(names[at] if names else f"{chr(97 + at)}.sh", dedent(text)) for at, text in enumerate(texts)]
    made = import_texts(named, known or {}, "test", {})
    return Made(made.text, yaml.safe_load(made.text), tuple((n.sort.value, n.place, n.text) for n in made.notes))
