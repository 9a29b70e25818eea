"""The engines and routers that pods and scripts start, with variables filled in and prefixes parsed."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.kinds import MODULES
from pdctl.engines.sglang.arguments import arguments
from pdctl.imports.found import ROLES, FoundEngine, FoundRouter
from pdctl.manifests.command_lines import Flags, in_full, parse, program, worker
from pdctl.manifests.manifest import SCRIPT, SaidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.imports.found import Notes
    from pdctl.manifests.command_lines import Flag, Listed, ServerProgram
    from pdctl.manifests.manifest import Container, Manifest, ManifestPod, PlacedWord

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


def engines(manifest: Manifest, known: Mapping[str, str], notes: Notes) -> Iterator[FoundEngine]:
    for pod in manifest.pods:
        for container in pod.containers:
            found = program(container.argv)
            if found is not None and found.role == "engine":
                yield _engine(Start(pod, container, found), known, notes)


def routers(manifest: Manifest, known: Mapping[str, str], notes: Notes) -> Iterator[FoundRouter]:
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
