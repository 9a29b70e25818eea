"""Read files into one Manifest: the entry point of this package."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from yaml.nodes import ScalarNode

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.manifests import shell
from pdctl.manifests.command_lines import program
from pdctl.manifests.lenient_yaml import documents, first_line, get, items, line, number, pairs, text
from pdctl.manifests.manifest import COMPOSE, SCRIPT, Container, Manifest, ManifestPod, PlacedWord, SaidSetting, Service
from pdctl.manifests.pod_templates import shelled
from pdctl.manifests.shell import ShellVariables
from pdctl.manifests.shell_words import split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from yaml.nodes import Node


LARGEST = 8 << 20  # bytes; a rendered chart has a few hundred KiB, a larger file is a mistake (a log, a checkpoint)
STDIN = "-"
TOPOLOGY, MANIFEST = "topology", "manifest"
NESTED = 2  # maximum depth of shells inside shells
QUOTING = ("echo", "printf", "pkill", "pgrep", "grep", "trap")  # they name a command line without starting it


def sort(path: str) -> str:
    """The kind of a file: `topology`, `manifest`, `compose` or `script`; "" if it is none of them or cannot be told.

    The content decides, never the name. Standard input is "": only the caller that knows its kind reads it.
    """
    if path == STDIN or not Path(path).is_file():
        return ""
    return kind_of(text_of(path))


def load(paths: Sequence[str]) -> Manifest:
    """Manifests and scripts as one. Raise UsageError if a file cannot be read or nothing in them starts a server."""
    parts = [read_text(text_of(path), "<stdin>" if path == STDIN else path) for path in paths]
    pods = tuple(pod for part in parts for pod in part.pods)
    if not pods:
        raise UsageError(
            f"nothing in {', '.join(paths)} starts an SGLang engine or a router",
            "name manifests or scripts whose commands contain sglang.launch_server or sglang_router.launch_router",
        )
    services = tuple(service for part in parts for service in part.services)
    return Manifest(tuple(paths), pods, services, tuple(labels for part in parts for labels in part.others))


def read_text(text: str, name: str, known: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """The Manifest of one text, which may be empty. `name`: the text's name in evidence and errors.

    `known`: variables already set for a script or a compose file.
    """
    if kind_of(text) == SCRIPT:
        return Manifest((name,), tuple(_script(text, name, known)), ())
    if kind_of(text) == COMPOSE:
        from pdctl.manifests.read import read_compose  # imported late: loads the YAML parser

        return read_compose(text, name, known)
    from pdctl.manifests import lenient_yaml
    from pdctl.manifests import pod_templates as templates  # imported late, as above

    pods: list[ManifestPod] = []
    services: list[Service] = []
    others: list[Mapping[str, str]] = []
    for document in lenient_yaml.documents(text, name):
        pods += templates.pods(document, name)
        services += templates.services(document, name)
        others += templates.others(document)
    return Manifest((name,), tuple(pods), tuple(services), tuple(others))


def kind_of(text: str) -> str:
    """The kind of a text, as in `sort`."""
    lines = [line.split("#", 1)[0].rstrip() for line in text.splitlines()[:400]]
    if text.startswith("#!"):
        return SCRIPT
    keys = {line.partition(":")[0] for line in lines if line and not line[0].isspace() and ":" in line}
    if "apiVersion" in keys or "kind" in keys:
        return MANIFEST
    if "services" in keys and "roles" not in keys:
        return COMPOSE
    if "roles" in keys or any(line.replace(" ", "") == "version:pdctl/v1" for line in lines):
        return TOPOLOGY
    return SCRIPT if any(True for _ in _started(text, 1, {})) else ""


def _script(text: str, name: str, known: Mapping[str, str]) -> list[ManifestPod]:
    """A script as one pod, because all that it starts shares its host; empty if it starts no server."""
    found = [
        Container(
            name=f"line {command.words[0].line}",
            image="",
            image_line=0,
            argv=command.words,
            env=command.env,
            shell=True,
            env_open=True,
        )
        for command in _started(text, 1, known)
    ]
    if not found:
        return []
    return [ManifestPod(Path(name).name, SCRIPT, name, 1, "", 1, None, {}, (), True, "", None, tuple(found))]


def _started(text: str, first: int, known: Mapping[str, str], depth: int = 0) -> Iterator[shell.ShellCommand]:
    """The commands that start a server, including those in a text passed to `bash -c` or `ssh`."""
    for command in shell.commands(text, first, known):
        if program(command.words):
            yield command
            continue
        for word in command.words[1:] if depth < NESTED and command.words[0].text not in QUOTING else ():
            if " -m " in word.text:
                yield from _started(word.text, word.line - word.text.count("\n"), {}, depth + 1)


def text_of(path: str) -> str:
    """The text of a file or of standard input. Raise UsageError if it cannot be read, is too large or is binary."""
    try:
        raw = sys.stdin.buffer.read(LARGEST + 1) if path == STDIN else user_files.read(path, LARGEST)
    except OSError as error:
        fix = "name a readable file"
        if " -" in path:
            fix = f"a command line goes to standard input: echo {shlex.quote(path)} | pdctl import -"
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", fix) from None
    if len(raw) > LARGEST:
        raise UsageError(f"{path} is larger than {LARGEST >> 20} MiB", "is this a manifest, or a log?")
    text = raw.decode("utf-8-sig", errors="replace")
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", "name a YAML file or a shell script")
    return text.replace("\r\n", "\n")


SERVICE = "com.docker.compose.service"
BROKEN = re.compile(r"\\?\n")  # a command on several lines is one command


def read_compose(body: str, name: str, known: Mapping[str, str]) -> Manifest:
    """Read a compose file. `known`: values for `${…}`, as from the environment. TopologyError if it is not YAML."""
    pods: list[ManifestPod] = []
    for document in documents(body, name):
        for service, node in pairs(get(document, "services")):
            pod = _pod(service, node, name, ShellVariables(dict(known)))
            if any(program(each.argv) for each in pod.containers):
                pods.append(pod)
    return Manifest((name,), tuple(pods), tuple(_service(pod) for pod in pods))


def _service(pod: ManifestPod) -> Service:
    """The Service of a pod: compose services reach each other by name, on every port."""
    return Service(pod.name, pod.file, pod.line, COMPOSE, True, {SERVICE: pod.name}, ())


def _pod(service: str, node: Node, file: str, values: ShellVariables) -> ManifestPod:
    env = tuple(_environment(get(node, "environment"), values))
    words, lines = _words(node, values)
    argv, in_shell, own = shelled(words, lines, {said.name: said.value for said in env if said.value is not None})
    image = get(node, "image")
    container = Container(
        name=service,
        image=_filled(text(image) or "", values),
        image_line=line(image),
        argv=argv,
        env=(*env, *own),
        gpus=_gpus(node),
        shell=in_shell,
        env_open=get(node, "env_file") is not None,
    )
    replicas = number(get(node, "scale"))
    return ManifestPod(
        name=service,
        kind=COMPOSE,
        file=file,
        line=line(node),
        part="",
        replicas=number(get(node, "deploy", "replicas")) if replicas is None else replicas,
        size=None,
        labels={},
        annotations=(),
        host_network=text(get(node, "network_mode")) == "host",
        dns_policy="",
        grace=None,
        containers=(container,),
        added={SERVICE: service},
        shm=text(get(node, "shm_size")) or "",
    )


def _words(node: Node, values: ShellVariables) -> tuple[tuple[PlacedWord, ...], list[int]]:
    words: list[PlacedWord] = []
    lines: list[int] = []
    for key in ("entrypoint", "command"):
        said = get(node, key)
        if isinstance(said, ScalarNode):
            for raw in next(split(BROKEN.sub(" ", text(said) or "") + "\n", first_line(said)), []):
                words += [PlacedWord(each.replace("$$", "$"), first_line(said)) for each in values.words(raw)]
        else:
            words += [PlacedWord(_filled(text(each) or "", values), line(each)) for each in items(said)]
        lines += [word.line for word in words[len(lines) :]]
    return tuple(words), lines


def _environment(node: Node | None, values: ShellVariables) -> Iterator[SaidSetting]:
    """Variables from a map or a list of NAME=value; a name without a value comes from compose's own environment."""
    for name, value in pairs(node):
        said = text(value)
        yield SaidSetting(name, None if said is None else _filled(said, values), line(value))
    for each in items(node):
        variable, equals, given = (text(each) or "").partition("=")
        if variable:
            yield SaidSetting(variable, _filled(given, values) if equals else None, line(each))


def _filled(body: str, values: ShellVariables) -> str:
    return values.filled(body.replace("$$", "\0")).replace("\0", "$")


def _gpus(node: Node) -> int | None:
    """The number of requested GPUs; None if all are requested or nothing is said."""
    for device in items(get(node, "deploy", "resources", "reservations", "devices")):
        ids = items(get(device, "device_ids"))
        if ids:
            return len(ids)
        count = number(get(device, "count"))
        if count is not None:
            return count
    return None
