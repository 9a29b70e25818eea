"""Whether the topology holds what was imported: it is checked and planned, its commands are held against the files'."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.versions import NEWEST, SGLANG, spell
from pdctl.errors import PdctlError, TopologyError
from pdctl.imports import document
from pdctl.imports.found import ROLES
from pdctl.layout.planner import plan_topology
from pdctl.manifests.command_lines import parse
from pdctl.topology import resolve
from pdctl.topology.diagnostic import Code, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.document import Draft
    from pdctl.imports.notes import Notes
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.topology.resolve import ResolvedTopology

RELEASE = "flag-not-in-release"
# Decided elsewhere, derived, or told of above.
TOLD = (
    "host", "port", "nnodes", "node-rank", "dist-init-addr", "nccl-port", "base-gpu-id", "gpu-id-step", "model-path",
    "served-model-name", "disaggregation-bootstrap-port", "disaggregation-mode", "tp-size", "dp-size", "attn-dp-size",
    "enable-dp-attention", "ep-size", "pp-size", "disable-overlap-schedule", "disaggregation-decode-tp",
    "disaggregation-decode-dp", "disaggregation-prefill-pp", "dtype", "kv-cache-dtype", "context-length",
    "disaggregation-transfer-backend", "disaggregation-ib-device", "page-size", "mem-fraction-static",
)  # fmt: skip


class Imported(NamedTuple):
    text: str
    plan: Plan | None


def settled(draft: Draft, head: Sequence[str], name: str, environ: Mapping[str, str], notes: Notes) -> Imported:
    """The text of a topology that can be checked and planned; what cannot stay as it was is noted."""
    values, resolved = _accepted(draft, name, environ, notes)
    plan = _planned(resolved, notes)
    engine = values["engine"]
    if plan is not None and isinstance(engine, dict) and engine["kind"] == "sglang" and "version" not in engine:
        values, plan = _release(values | {"engine": engine}, plan, name, environ, notes)
    if plan is not None:
        for problem in plan.problems:
            ways = f"; {problem.nearest[0]} would do" if problem.nearest else ""
            notes.suspect("", f"no plan can run: {problem.message}{ways}")
        _compare(draft, plan, notes)
    return Imported(document.to_yaml(values, head), plan)


MOVABLE = (("ports", "dist-init"), ("ports", "bootstrap"), ("ports", "http"), ("router", "port"))


def _accepted(
    draft: Draft, name: str, environ: Mapping[str, str], notes: Notes
) -> tuple[dict[str, object], ResolvedTopology]:
    """Ports that meet in a topology's way of counting are left to pdctl, one kind after the other."""
    values = dict(draft.values)
    for section, key in MOVABLE:
        inner = values.get(section)
        if not isinstance(inner, dict) or key not in inner or not _meeting(values, name, environ):
            continue
        values[section] = {other: value for other, value in inner.items() if other != key}
        notes.changed("", f"{section}.{key} {inner[key]}: two servers would meet there, as pdctl counts ports up")
    return values, resolve.of_text(document.to_yaml(values, ()), name, environ)


def _meeting(values: dict[str, object], name: str, environ: Mapping[str, str]) -> bool:
    """Two servers want one port. Any other mistake is raised: what is written here can have none."""
    try:
        resolve.of_text(document.to_yaml(values, ()), name, environ)
    except TopologyError as error:
        codes = {found.code for found in error.diagnostics if isinstance(found, Diagnostic)}
        if codes & {Code.PORT_COLLISION, Code.PORT_RANGE}:
            return True
        raise
    return False


def _planned(resolved: ResolvedTopology, notes: Notes) -> Plan | None:
    try:
        return plan_topology(resolved.topology)
    except PdctlError as error:
        notes.suspect("", f"it cannot be planned: {error.message}")
        return None


def _release(
    values: dict[str, object], plan: Plan, name: str, environ: Mapping[str, str], notes: Notes
) -> tuple[dict[str, object], Plan]:
    """The newest release that has all the flags: the files name none."""
    reasons = [problem.message for problem in plan.problems if problem.code == RELEASE]
    for version in reversed(SGLANG) if reasons else ():
        engine = values["engine"]
        tried = values | {"engine": {**engine, "version": spell(version)}} if isinstance(engine, dict) else values
        other = _planned(resolve.of_text(document.to_yaml(tried, ()), name, environ), notes)
        if other is not None and not any(problem.code == RELEASE for problem in other.problems):
            notes.assumed("", f"engine.version {spell(version)}, for nobody says which release runs: {reasons[0]}")
            return tried, other
    notes.assumed("", f"engine.version: nobody says which release runs; the rules of {spell(NEWEST)} apply")
    return values, plan


def _compare(draft: Draft, plan: Plan, notes: Notes) -> None:
    """Ports and flags that would be others than those in the files."""
    for role in ROLES:
        planned = [one for one in plan.instances if one.role == role]
        seats = [seat for seat in draft.seats if seat.instance.role == role]
        for seat, one in zip(seats, planned, strict=False):
            leader, bootstrap = seat.instance.leader, "disaggregation-bootstrap-port"
            _port(leader.number("port"), one.http_port, f"port of {one.name}", leader.said("port"), notes)
            if role == ROLES[0]:
                what = f"bootstrap port of {one.name}"
                _port(leader.number(bootstrap), one.bootstrap_port, what, leader.said(bootstrap), notes)
            if seat.instance.nodes != one.nnodes:
                text = f"{one.name} takes {one.nnodes} nodes, and {seat.instance.nodes} here"
                notes.changed(leader.said("nnodes"), text)
        if planned:
            _flags(draft, role, planned[0], notes)


def _port(here: int | None, there: int | None, what: str, place: str, notes: Notes) -> None:
    if here is not None and there is not None and here != there:
        notes.changed(place, f"{what}: {there} instead of {here}, for pdctl counts up from the first")


def _flags(draft: Draft, role: str, planned: InstancePlan, notes: Notes) -> None:
    argv = planned.commands[0].argv
    there = {flag.name: flag for flag in parse((word, "") for word in argv).given}
    here = draft.both[role].flags
    added = [
        str(flag)
        for name, flag in there.items()
        if name not in TOLD and not any(name.startswith(each) for each in here)
    ]
    if added:
        notes.changed("", f"every {role} gets {', '.join(added)} as well")
