"""Turn files into the text of a checked and planned topology, with a note on everything that differs from them."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.versions import NEWEST, SGLANG, spell
from pdctl.errors import PdctlError, TopologyError, UsageError
from pdctl.imports import document, started
from pdctl.imports.document import draft
from pdctl.imports.found import ROLES, Found, FoundEngine, FoundRouter, Note, Notes, Sort
from pdctl.layout.planner import plan_topology
from pdctl.manifests import read
from pdctl.manifests.command_lines import Flags, parse
from pdctl.manifests.manifest import COMPOSE, SCRIPT
from pdctl.manifests.read import STDIN, text_of
from pdctl.topology import resolve
from pdctl.topology.diagnostic import Code, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.document import Draft
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.topology.resolve import ResolvedTopology

RECIPE, KUBERNETES = "recipe", "kubernetes"
RELEASE = "flag-not-in-release"
# Flags that are decided elsewhere, derived, or already noted.
TOLD = (
    "host", "port", "nnodes", "node-rank", "dist-init-addr", "nccl-port", "base-gpu-id", "gpu-id-step", "model-path",
    "served-model-name", "disaggregation-bootstrap-port", "disaggregation-mode", "tp-size", "dp-size", "attn-dp-size",
    "enable-dp-attention", "ep-size", "pp-size", "disable-overlap-schedule", "disaggregation-decode-tp",
    "disaggregation-decode-dp", "disaggregation-prefill-pp", "dtype", "kv-cache-dtype", "context-length",
    "disaggregation-transfer-backend", "disaggregation-ib-device", "page-size", "mem-fraction-static",
)  # fmt: skip
MOVABLE = (("ports", "dist-init"), ("ports", "bootstrap"), ("ports", "http"), ("router", "port"))


class Import(NamedTuple):
    """`text`: a valid topology. `summary`: its contents in one line. `feasible`: whether a plan can run it."""

    text: str
    notes: tuple[Note, ...]
    summary: str
    feasible: bool

    @property
    def incomplete(self) -> bool:
        return any(note.sort in (Sort.SUSPECT, Sort.LEFT_OUT) for note in self.notes)


def import_files(
    files: Sequence[str], known: Mapping[str, str], name: str | None, environ: Mapping[str, str]
) -> Import:
    """Import files. Raise UsageError if one cannot be read, or if they start no pair of prefill and decode."""
    if files.count(STDIN) > 1:
        raise UsageError("standard input can be read once", "name - once")
    texts = [("<stdin>" if each == STDIN else each, text_of(each)) for each in files]
    return import_texts(texts, known, name or _name(files), environ)


def import_texts(
    texts: Sequence[tuple[str, str]], known: Mapping[str, str], name: str, environ: Mapping[str, str]
) -> Import:
    """As `import_files`, for (name, text) pairs."""
    notes = Notes()
    found = gather(texts, known, notes)
    if not found.engines and not found.routers:
        names = ", ".join(each for each, _ in texts)
        raise UsageError(
            f"nothing in {names} starts an SGLang engine or a router",
            "name scripts or manifests whose commands contain sglang.launch_server, or a recipe of srt-slurm",
        )
    made = draft(found, name, notes)
    head = [f"Imported by pdctl from {', '.join(PurePath(each).name for each, _ in texts)}."]
    settled_ = verify(made, head, "<imported>", environ, notes)
    roles = [f"{sum(seat.instance.role == role for seat in made.seats)} {role}" for role in ("prefill", "decode")]
    feasible = settled_.plan is not None and settled_.plan.feasible
    return Import(settled_.text, notes.listed(), ", ".join(roles), feasible)


def _name(files: Sequence[str]) -> str:
    """The file's name; for several files of one deployment or a compose file, the directory's name, as compose does."""
    if files[0] == STDIN:
        return "imported"
    first = Path(files[0])
    shared = len(files) > 1 or first.stem in ("compose", "docker-compose")
    return (first.resolve().parent.name if shared else "") or first.stem


def gather(texts: Sequence[tuple[str, str]], known: Mapping[str, str], notes: Notes) -> Found:
    """Read all files. `texts`: (name, text) of each; `known`: variables to fill in. Raise UsageError for a topology."""
    variables = dict(known)
    engines: list[FoundEngine] = []
    routers: list[FoundRouter] = []
    sections: dict[str, object] = {}
    forms: list[str] = []
    for name, text in texts:
        form = form_of(text)
        if form == read.TOPOLOGY:
            raise UsageError(f"{name} is a topology already", "check it with `pdctl topology check`")
        if form == RECIPE:
            from pdctl.imports import recipe  # imported late: only recipes need it

            found = recipe.read(text, name, variables, notes)
            engines += found.engines
            routers += found.routers
            sections |= found.sections
        else:
            manifest = read.read_text(text, name, variables)
            engines += started.engines(manifest, variables, notes)
            routers += started.routers(manifest, variables, notes)
        if form in (SCRIPT, ""):
            from pdctl.manifests import shell  # imported late: only scripts need it

            after = shell.variables(text, variables)
            if not form and after == variables:
                notes.left_out(name, "nothing in it starts an engine or a router")
            variables = after
        forms.append(form)
    dynamo = next((engine for engine in engines if engine.kind == "dynamo"), None)
    if dynamo is not None and not routers:
        routers.append(FoundRouter("dynamo", Flags(()), {}, dynamo.place))
    return Found(tuple(engines), tuple(routers), sections, _form_of_all(forms))


def form_of(text: str) -> str:
    """The form of a file: script, compose, recipe, kubernetes or topology; "" if it is none of them."""
    kind = read.kind_of(text)
    if kind == read.MANIFEST:
        return KUBERNETES
    keys = {line.partition(":")[0] for line in text.splitlines() if line and not line[0].isspace() and ":" in line}
    if kind != SCRIPT and {"backend", "resources", "model"} <= keys:
        return RECIPE
    return kind


def _form_of_all(forms: Sequence[str]) -> str:
    """The form of all files together. Manifests with a script are a Kubernetes deployment: the script applies them."""
    for form in (KUBERNETES, RECIPE, COMPOSE):
        if form in forms:
            return form
    return SCRIPT


class Imported(NamedTuple):
    text: str
    plan: Plan | None


def verify(draft: Draft, head: Sequence[str], name: str, environ: Mapping[str, str], notes: Notes) -> Imported:
    """The text of a topology that can be checked and planned; note what had to change for that."""
    values, resolved = _accepted(draft, name, environ, notes)
    plan = _planned(resolved, notes)
    engine = values["engine"]
    if plan is not None and isinstance(engine, dict) and engine["kind"] != EMBEDDED and "version" not in engine:
        values, plan = _release(values | {"engine": engine}, plan, name, environ, notes)
    if plan is not None:
        for problem in plan.problems:
            ways = f"; {problem.nearest[0]} would do" if problem.nearest else ""
            notes.suspect("", f"no plan can run: {problem.message}{ways}")
        _compare(draft, plan, notes)
    return Imported(document.to_yaml(values, head), plan)


def _accepted(
    draft: Draft, name: str, environ: Mapping[str, str], notes: Notes
) -> tuple[dict[str, object], ResolvedTopology]:
    """Drop ports that collide when pdctl counts up from them, one kind after the other, until the topology is valid."""
    values = dict(draft.values)
    for section, key in MOVABLE:
        inner = values.get(section)
        if not isinstance(inner, dict) or key not in inner or not _meeting(values, name, environ):
            continue
        values[section] = {other: value for other, value in inner.items() if other != key}
        notes.changed("", f"{section}.{key} {inner[key]}: two servers would meet there, as pdctl counts ports up")
    return values, resolve.of_text(document.to_yaml(values, ()), name, environ)


def _meeting(values: dict[str, object], name: str, environ: Mapping[str, str]) -> bool:
    """Whether two servers use the same port. Any other error is raised: a generated topology must not have one."""
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
    """Choose the newest release that has all the flags, because the files name none."""
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
    """Note ports and flags for which the plan differs from the files."""
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
