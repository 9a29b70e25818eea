"""Read files into one Manifest: what this package is called by."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.manifests import shell
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import COMPOSE, SCRIPT, Container, Manifest, ManifestPod, Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST = 8 << 20  # a rendered chart is a few hundred KiB; more is a mistake (a log, a checkpoint)
STDIN = "-"
TOPOLOGY, MANIFEST = "topology", "manifest"
NESTED = 2  # shells inside shells
QUOTING = ("echo", "printf", "pkill", "pgrep", "grep", "trap")  # they say a command line, and start none


def sort(path: str) -> str:
    """What a file is: `topology`, `manifest`, `compose` or `script`; "" when it is none of them or cannot be told.

    By what stands in it, never by its name. Standard input is read by whoever was told what it is.
    """
    if path == STDIN or not Path(path).is_file():
        return ""
    return kind_of(text_of(path))


def load(paths: Sequence[str]) -> Manifest:
    """Manifests and scripts as one; UsageError for a file that cannot be read, or when nothing in them is started."""
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
    """What one text says, which may be nothing; `name` stands for it in evidence and in errors.

    `known`: variables that a script or a compose file finds set.
    """
    if kind_of(text) == SCRIPT:
        return Manifest((name,), tuple(_script(text, name, known)), ())
    if kind_of(text) == COMPOSE:
        from pdctl.manifests.compose import read_compose  # late: loads the YAML parser

        return read_compose(text, name, known)
    from pdctl.manifests import lenient_yaml
    from pdctl.manifests import pod_templates as templates  # late, as above

    pods: list[ManifestPod] = []
    services: list[Service] = []
    others: list[Mapping[str, str]] = []
    for document in lenient_yaml.documents(text, name):
        pods += templates.pods(document, name)
        services += templates.services(document, name)
        others += templates.others(document)
    return Manifest((name,), tuple(pods), tuple(services), tuple(others))


def kind_of(text: str) -> str:
    """As `sort`, of a text."""
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
    """One pod: what a script starts shares the host it runs on."""
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
    """Commands that start something, those of a text handed to `bash -c` or `ssh` included."""
    for command in shell.commands(text, first, known):
        if program(command.words):
            yield command
            continue
        for word in command.words[1:] if depth < NESTED and command.words[0].text not in QUOTING else ():
            if " -m " in word.text:
                yield from _started(word.text, word.line - word.text.count("\n"), {}, depth + 1)


def text_of(path: str) -> str:
    """A file's text, or standard input's; UsageError for one that cannot be read, or is none."""
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
