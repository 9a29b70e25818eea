"""Recognize command lines that start an engine or a router, and read their flags with the place of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.kinds import COMMAND_LINES, RELEASED, RELEASED_ROUTER, ROUTERS
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang import arguments as sglang
from pdctl.manifests.manifest import PlacedWord, UnreadCommand
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.engines.versions import Version
    from pdctl.manifests.manifest import Container

MOST = 10**18 - 1  # no engine has a larger setting


class ServerProgram(NamedTuple):
    """`kind` is an engine (sglang, dynamo, embedded) or a router (sglang-router, smg, mini-lb, pdctl).

    `head`: the words before those that name the program: an interpreter, `numactl …`, `docker run …`.
    """

    role: str  # engine | router
    kind: str
    flags: tuple[PlacedWord, ...]
    head: tuple[PlacedWord, ...] = ()


def program(argv: Sequence[PlacedWord]) -> ServerProgram | None:
    """The engine or router that `argv` starts; None for any other command."""
    texts = [word.text.rpartition("/")[2] if at == 0 else word.text for at, word in enumerate(argv)]
    for row in COMMAND_LINES:
        for at in range(len(texts) - 1):
            if tuple(texts[at : at + len(row.words)]) == row.words:
                flags = tuple(argv[at + len(row.words) :])
                if not row.flag or any(word.text == row.flag for word in flags):
                    return ServerProgram(row.role, row.kind, flags, tuple(argv[:at]))
    return None


PD_FLAG = "--pd-disaggregation"  # no engine has it
ROLE_FLAG = "--disaggregation-mode"  # no router has it
ROUTER_IMAGES = {image: one.name for one in ROUTERS.values() for image in one.images}
# owner/name:tag, neither the value of --name nor a mount.
PUBLISHED = re.compile(r"[a-z0-9][\w.:-]*/[\w./-]+(:[\w.-]+)?(@sha256:[0-9a-f]+)?")


def behind_entrypoint(argv: tuple[PlacedWord, ...], image: str, line: int) -> tuple[PlacedWord, ...]:
    """The command of a container: flags alone follow the entrypoint of `image`, which stands at `line`.

    A router is certain from a published image, or from the flag that only routers in PD mode have. Anything else is
    returned unchanged.
    """
    if not _flags_alone(argv):
        return argv
    kind = ROUTER_IMAGES.get(_image_name(image), "")
    if not kind and any(word.text == PD_FLAG for word in argv):
        given = {flag.name for flag in parse((word.text, "") for word in argv).given}
        released = sorted((one for one in ROUTERS.values() if one.images), key=lambda one: one.name != RELEASED_ROUTER)
        kind = next((one.name for one in released if given <= routers.ever(one.name)), "")
    return (*(PlacedWord(word, line) for word in ROUTERS[kind].command), *argv) if kind else argv


def in_docker_run(words: tuple[PlacedWord, ...]) -> tuple[PlacedWord, ...]:
    """A `docker run` of a router's published image with the entrypoint written out; any other command unchanged."""
    texts = [word.text for word in words]
    if texts[1:2] != ["run"] or texts[0].rpartition("/")[2] not in ("docker", "podman"):
        return words
    for at, word in enumerate(words[2:-1], 2):
        if word.text.startswith("--entrypoint"):
            break
        if PUBLISHED.fullmatch(word.text) and _image_name(word.text) in ROUTER_IMAGES:
            return (*words[: at + 1], *behind_entrypoint(words[at + 1 :], word.text, word.line))
    return words


def unread_commands(containers: Iterable[Container], name: str, file: str) -> Iterator[UnreadCommand]:
    """Those of `containers` whose flags read like an engine's or a router's, and whose program only the image tells."""
    for each in containers:
        given = [word.text.partition("=")[0] for word in each.argv]
        if _flags_alone(each.argv) and (ROLE_FLAG in given or PD_FLAG in given or RELEASED in _image_name(each.image)):
            flags = " ".join(word.text for word in each.argv)
            yield UnreadCommand(name, f"{file}:{each.argv[0].line}", each.image, flags)


def _flags_alone(argv: Sequence[PlacedWord]) -> bool:
    return bool(argv) and argv[0].text.startswith("--")


def _image_name(image: str) -> str:
    """`ghcr.io/someone/smg:v1@sha256:…` → smg."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


# Spellings that mean the same to sglang 0.5.3 to 0.5.23 and to sglang_router 0.3.2.
ALIASES = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "attention-data-parallel-size": "attn-dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "attention-context-parallel-size": "attn-cp-size",
    "moe-data-parallel-size": "moe-dp-size",
    "decode-context-parallel-size": "dcp-size",
    "nccl-init-addr": "dist-init-addr",
}


class Flag(NamedTuple):
    """`place`: file:line, or "" if only the command is known. `written`: as typed, no dashes; "" if it is `name`."""

    name: str
    values: tuple[str, ...]
    place: str = ""
    written: str = ""

    def __str__(self) -> str:
        return " ".join((f"--{self.written or self.name}", *self.values))

    @property
    def evidence(self) -> str:
        return f"{self.place}: {self}" if self.place else str(self)


class Flags(NamedTuple):
    """Flags in the order given. If a flag is given twice, the last one counts, as in argparse."""

    given: tuple[Flag, ...]

    def find(self, *names: str) -> Flag | None:
        return next((flag for flag in reversed(self.given) if flag.name in names), None)

    def all(self, name: str) -> tuple[Flag, ...]:
        return tuple(flag for flag in self.given if flag.name == name)

    def text(self, *names: str) -> str | None:
        """The value; None if the flag is absent, has no value, or contains an unresolved variable."""
        flag = self.find(*names)
        value = " ".join(flag.values) if flag is not None else ""
        return value if value and "$" not in value else None

    def number(self, *names: str) -> int | None:
        return numerals.signed(self.text(*names), MOST)

    def has(self, *names: str) -> bool:
        return self.find(*names) is not None

    def unclear(self, *names: str) -> bool:
        """Whether the flag is given with a value that contains an unresolved variable."""
        flag = self.find(*names)
        return flag is not None and any("$" in value for value in flag.values)


def parse(
    words: Iterable[tuple[str, str]],
    place: Callable[[str], str] | None = None,
    full: Callable[[str], str] | None = None,
) -> Flags:
    """Parse (word, place) pairs.

    `place`: finds a better place for a flag by its name. `full`: expands an abbreviated flag name.
    """
    found: list[tuple[str, list[str], str]] = []  # a value on a line of its own gives the place
    for word, where in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append((name, [value] if equals else [], where))
        elif found:
            name, values, before = found[-1]
            found[-1] = (name, [*values, word], before if values else where)
    return Flags(tuple(_flag(written, values, at, place, full) for written, values, at in found))


def _flag(
    written: str,
    values: list[str],
    at: str,
    place: Callable[[str], str] | None,
    full: Callable[[str], str] | None,
) -> Flag:
    name = written.replace("_", "-")
    name = ALIASES.get(name, name)
    if full is not None:
        name = full(name)
        name = ALIASES.get(name, name)
    return Flag(name, tuple(values), (place(name) if place else "") or at, "" if written == name else written)


def in_full(kind: str, version: Version | None = None) -> Callable[[str], str]:
    """The `full` of `parse`: expands abbreviated flags as the program's own parser does (`kind`: see ServerProgram).

    `version` None: the release is unknown. Dynamo's flags are unknown, so they are not expanded.
    """
    if kind == RELEASED:
        return lambda name: sglang.full_name(name, version)
    if kind in ROUTERS:
        return lambda name: routers.full_name(name, kind)
    return lambda name: name


class Listed(NamedTuple):
    """One worker on a router's command line. `port` None: not given. `clear` False: it is an unresolved variable.

    `said`: the port as it is written, "" if it is not.
    """

    url: str
    port: int | None
    evidence: str
    clear: bool = True
    said: str = ""


def worker(flag: Flag) -> Listed:
    """The worker of `--prefill URL [PORT|none]` or `--decode URL`."""
    url, port = (*flag.values, "", "")[:2]
    clear = "$" not in port
    return Listed(url.rstrip("/"), numerals.port(port), flag.evidence, clear, port)
