"""Read files into one Manifest: the entry point of this package."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.loopback import is_loopback
from pdctl.manifests import shell
from pdctl.manifests.command_lines import in_docker_run, program, unread_commands
from pdctl.manifests.manifest import (
    COMPOSE,
    MOST_GPUS,
    SCRIPT,
    UNREAD_FIX,
    Container,
    Manifest,
    ManifestPod,
    Service,
    UnreadCommand,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.manifests.manifest import PlacedWord

LARGEST = 8 << 20  # bytes; a rendered chart has a few hundred KiB, a larger file is a mistake (a log, a checkpoint)
STDIN = "-"
TOPOLOGY, MANIFEST = "topology", "manifest"
NESTED = 2  # maximum depth of shells inside shells
SSH_VALUED = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*[BbcDEeFIiJLlmOoPpQRSWw]")  # its value is the next word
SPREADING = ("srun", "mpirun", "mpiexec", "pdsh", "pssh", "clush", "parallel", "kubectl")  # choose hosts by themselves
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
    unread = tuple(each for part in parts for each in part.unread)
    if not pods:
        if unread:
            raise UsageError(f"{unread[0].place}: {unread[0]}", UNREAD_FIX)
        raise UsageError(
            f"nothing in {', '.join(paths)} starts an SGLang engine or a router",
            "name manifests or scripts whose commands contain sglang.launch_server or sglang_router.launch_router",
        )
    services = tuple(service for part in parts for service in part.services)
    return Manifest(
        tuple(paths),
        pods,
        services,
        tuple(labels for part in parts for labels in part.others),
        unread,
        frozenset(name for part in parts for name in part.host_names),
        any(part.joined for part in parts),
    )


def read_text(text: str, name: str, known: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """The Manifest of one text, which may be empty. `name`: the text's name in evidence and errors.

    `known`: variables already set for a script or a compose file.
    """
    if kind_of(text) == SCRIPT:
        return Manifest((name,), tuple(_script(text, name, known)), ())
    if kind_of(text) == COMPOSE:
        from pdctl.manifests.compose import read_compose  # imported late: loads the YAML parser

        return read_compose(text, name, known)
    from pdctl.manifests import lenient_yaml
    from pdctl.manifests import pod_templates as templates  # imported late, as above

    pods: list[ManifestPod] = []
    services: list[Service] = []
    others: list[Mapping[str, str]] = []
    unread: list[UnreadCommand] = []
    hosts: set[str] = set()
    for document in lenient_yaml.documents(text, name):
        services += templates.services(document, name)
        hosts.update(templates.host_names(document))
        for pod in templates.pods(document, name):
            if any(program(each.argv) for each in pod.containers):
                pods.append(pod)
            else:
                others.append(pod.labels)
                unread += unread_commands(pod.containers, pod.name, name)
    return Manifest((name,), tuple(pods), tuple(services), tuple(others), tuple(unread), frozenset(hosts))


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
            host=command.host,
            devices=_devices(command.words),
        )
        for command in _started(text, 1, known)
    ]
    if not found:
        return []
    return [ManifestPod(Path(name).name, SCRIPT, name, 1, "", 1, None, {}, (), True, "", None, tuple(found))]


def _devices(words: Sequence[PlacedWord]) -> tuple[str, ...] | None:
    """The GPUs that a command is given, as in Container: all unless `docker run` says otherwise."""
    started = program(words)
    said = [word.text for word in started.head] if started is not None else []
    if not any(word.rpartition("/")[2] in ("docker", "podman") for word in said):
        return ()
    for word, value in pairwise((*said, "")):
        option, equals, own = word.partition("=")
        if option == "--gpus":
            wanted = (own if equals else value).strip("\"'")
            if wanted.isdigit():  # how many: Docker takes the first ones
                return tuple(map(str, range(min(int(wanted), MOST_GPUS))))
            return () if wanted == "all" else tuple(wanted.removeprefix("device=").split(","))
    return None


def _started(text: str, first: int, known: Mapping[str, str], depth: int = 0) -> Iterator[shell.ShellCommand]:
    """The commands that start a server, including those in a text passed to `bash -c` or `ssh`."""
    for command in shell.commands(text, first, known):
        started = in_docker_run(command.words)
        found = program(started)
        if found is not None:
            yield command._replace(words=started, host=_host(found.head))
            continue
        for at, word in enumerate(command.words) if depth < NESTED and command.words[0].text not in QUOTING else ():
            if at and " -m " in word.text:
                outer = _host(command.words[:at])
                for inner in _started(word.text, word.line - word.text.count("\n"), {}, depth + 1):
                    yield inner if inner.host != "" else inner._replace(host=outer)


def _host(head: Sequence[PlacedWord]) -> str | None:
    """The host on which a command with these words in front is executed, as in Container."""
    names = [word.text.rpartition("/")[2] for word in head]
    if "ssh" not in names:
        return None if any(name in SPREADING for name in names) else ""
    said = [word.text for word in head[len(names) - names[::-1].index("ssh") :]]
    while said and said[0].startswith("-"):
        said = said[2 if SSH_VALUED.fullmatch(said[0]) else 1 :]
    host = said[0].removeprefix("ssh://").rpartition("@")[2] if said else ""
    if not host or "$" in host:
        return None
    return "" if is_loopback(host) else host


def text_of(path: str) -> str:
    """The text of a file or of standard input. Raise UsageError if it cannot be read, is too large or is binary."""
    try:
        raw = user_files.standard_input().read(LARGEST + 1) if path == STDIN else user_files.read(path, LARGEST)
    except OSError as error:
        fix = "name a readable file"
        if " -" in path:
            fix = f"a command line goes to standard input: echo {shlex.quote(path)} | pdctl import -"
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", fix) from None
    if len(raw) > LARGEST:
        raise UsageError(
            f"{path} is larger than {LARGEST >> 20} MiB", "is this a manifest, or a log? `pdctl diagnose` reads logs"
        )
    text = raw.decode("utf-8-sig", errors="replace")
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", "name a YAML file or a shell script")
    return text.replace("\r\n", "\n")
