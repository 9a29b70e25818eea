"""Turn files into the text of a checked and planned topology, with a note on everything that differs from them."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED, MODULES
from pdctl.engines.sglang.arguments import arguments
from pdctl.engines.versions import NEWEST, SGLANG, spell
from pdctl.errors import PdctlError, TopologyError, UsageError
from pdctl.imports import document
from pdctl.imports.document import draft
from pdctl.imports.found import ROLES, Found, FoundEngine, FoundRouter, Note, Notes, Sort
from pdctl.layout.planner import plan_topology
from pdctl.manifests import read
from pdctl.manifests.command_lines import Flags, in_full, parse, program, worker
from pdctl.manifests.manifest import COMPOSE, SCRIPT, UNREAD_FIX, SaidSetting
from pdctl.manifests.read import STDIN, text_of
from pdctl.quick_definitions import NamedTuple
from pdctl.topology import resolve
from pdctl.topology.diagnostic import Code, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.imports.document import Draft
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.manifests.command_lines import Flag, Listed, ServerProgram
    from pdctl.manifests.manifest import Container, Manifest, ManifestPod, PlacedWord
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
            engines += started_engines(manifest, variables, notes)
            routers += started_routers(manifest, variables, notes)
            for each in manifest.unread:
                notes.left_out(each.place, f"{each}: {UNREAD_FIX}")
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


class VerifiedTopology(NamedTuple):
    text: str
    plan: Plan | None


def verify(draft: Draft, head: Sequence[str], name: str, environ: Mapping[str, str], notes: Notes) -> VerifiedTopology:
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
    return VerifiedTopology(document.to_yaml(values, head), plan)


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
            _note_added_flags(draft, role, planned[0], notes)


def _port(here: int | None, there: int | None, what: str, place: str, notes: Notes) -> None:
    if here is not None and there is not None and here != there:
        notes.changed(place, f"{what}: {there} instead of {here}, for pdctl counts up from the first")


def _note_added_flags(draft: Draft, role: str, planned: InstancePlan, notes: Notes) -> None:
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


EXPANSION = re.compile(r"\$\((\w+)\)")
# Variables that operators set in the pods of a group.
SIZES = ("LWS_GROUP_SIZE", "RBG_LWP_GROUP_SIZE")
PYTHONS = ("python", "python3")
PROMPTS = (["$"], ["#"], [">"])  # shell prompts copied from a page
DOCKER = re.compile(r"--?(?:e|env)(?:=(.*))?", re.DOTALL)


class Start(NamedTuple):
    """One command line with its pod and container."""

    pod: ManifestPod
    container: Container
    program: ServerProgram


def started_engines(manifest: Manifest, known: Mapping[str, str], notes: Notes) -> Iterator[FoundEngine]:
    for pod in manifest.pods:
        for container in pod.containers:
            found = program(container.argv)
            if found is not None and found.role == "engine":
                yield _engine(Start(pod, container, found), known, notes)


def started_routers(manifest: Manifest, known: Mapping[str, str], notes: Notes) -> Iterator[FoundRouter]:
    for pod in manifest.pods:
        for container in pod.containers:
            found = program(container.argv)
            if found is not None and found.role == "router":
                yield _router(Start(pod, container, found), known, notes)


def _engine(start: Start, known: Mapping[str, str], notes: Notes) -> FoundEngine:
    pod, container, found = start
    command, head_env, image = _head(start, notes)
    flags = _flags(start, known)
    env = {said.name: said for said in (*head_env, *container.env)}
    mode = flags.text("disaggregation-mode") or ""
    return FoundEngine(
        role=mode if mode in ROLES else "",
        kind=found.kind,
        flags=flags,
        env=env,
        place=pod.at(_line(container.argv, found)),
        group=pod.name.removesuffix(f"/{pod.part}") if pod.part else pod.name,
        copies=None if pod.kind == SCRIPT else 1 if pod.replicas is None else pod.replicas,
        nodes=pod.size,
        gpus=container.gpus,
        image=container.image or image,
        part=pod.part,
        command=command,
        pod=pod,
    )


def _router(start: Start, known: Mapping[str, str], notes: Notes) -> FoundRouter:
    pod, container, found = start
    command, _, image = _head(start, notes)
    flags = _flags(start, known)
    old = flags.find("prefill-bootstrap-ports")
    return FoundRouter(
        kind=found.kind,
        flags=flags,
        listed={role: tuple(_listed(flags, role, old if role == "prefill" else None)) for role in ROLES},
        place=pod.at(_line(container.argv, found)),
        image=container.image or image,
        command=command,
        pod=pod,
    )


def _listed(flags: Flags, role: str, ports: Flag | None) -> Iterator[Listed]:
    """The router's workers, one `--prefill URL [PORT]` each; the first mini_lb took several URLs and a port list."""
    given = ports.values[0].split(",") if ports is not None and ports.values else []
    number = 0
    for flag in flags.all(role):
        words = list(flag.values)
        while words:
            after = 2 if len(words) > 1 and "/" not in words[1] and "." not in words[1] else 1
            one = worker(flag._replace(values=tuple(words[:after])))
            words = words[after:]
            if one.port is None and number < len(given):
                one = worker(flag._replace(values=(one.url, given[number])))
            number += 1
            yield one


def _flags(start: Start, known: Mapping[str, str]) -> Flags:
    """The flags with the variables that Kubernetes or `--var` would fill in."""
    pod, container, found = start
    values = {said.name: said.value for said in container.env if said.value is not None and "$(" not in said.value}
    values |= dict(known)
    if pod.size is not None:
        values |= dict.fromkeys(SIZES, str(pod.size))

    def filled(text: str) -> str:
        return EXPANSION.sub(lambda each: values.get(each[1], each[0]), text)

    given = parse(((filled(word.text), pod.at(word.line)) for word in found.flags), full=in_full(found.kind))
    return Flags(tuple(_settled(flag) for flag in given.given))


def _settled(flag: Flag) -> Flag:
    """A flag without the variables that follow its values, as in `--trust-remote-code $MORE`."""
    takes = {each.takes for each in arguments().get(flag.name, ())}
    values = [each for each in flag.values if each not in ("$@", "$*")]
    keep = 0 if takes == {""} else 1 if takes == {"="} else len(values)
    behind = values[keep:]
    return flag._replace(values=tuple(values[:keep] if all(each.startswith("$") for each in behind) else values))


def _line(argv: tuple[PlacedWord, ...], found: ServerProgram) -> int:
    return argv[len(found.head)].line if len(found.head) < len(argv) else argv[0].line


def _head(start: Start, notes: Notes) -> tuple[tuple[str, ...], list[SaidSetting], str]:
    """The interpreter and its words, unless it is a usual one; variables and image of a `docker run` in front of it."""
    pod, container, found = start
    head = [word.text for word in found.head]
    place = pod.at(_line(container.argv, found))
    rest = len(container.argv) - len(found.head) - len(found.flags)
    words = tuple(word.text for word in container.argv[len(found.head) : len(found.head) + rest])
    interpreter = [text for text in head if not text.startswith("-")][-1:] if words[:1] == ("-m",) else []
    before = head[: len(head) - head[::-1].index(interpreter[0]) - 1] if interpreter else head
    env, image = _docker(found, before) if "docker" in before[:2] or "podman" in before[:2] else ([], "")
    if before and before not in PROMPTS:
        notes.left_out(place, f"what stands in front of it: {_short(before)}")
    usual = not interpreter or interpreter[0] in PYTHONS or found.kind not in MODULES
    if usual or "$" in interpreter[0]:
        return (), env, image
    if not PurePath(interpreter[0]).name.startswith("python"):
        return (), env, image
    return (interpreter[0], *words), env, image


def _docker(found: ServerProgram, before: list[str]) -> tuple[list[SaidSetting], str]:
    env = []
    for at, text in enumerate(before):
        match = DOCKER.fullmatch(text)
        value = (match[1] or (before[at + 1] if at + 1 < len(before) else "")) if match else ""
        if "=" in value:
            name, _, said = value.partition("=")
            env.append(SaidSetting(name, said, found.head[at].line))
    images = [text for text in before if "/" in text and text[0] not in "-/.$~" and "=" not in text]
    return env, images[-1] if images and ":/" not in images[-1] else ""


def _short(words: list[str]) -> str:
    text = " ".join(words)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:59]}…`"
