"""Instances that took another role while they ran (`pdctl role-switch`): roles.json beside run.json.

run.json belongs to the supervisor; what another shell has changed stands next to it. Whoever reads a run sees the role
of now, and an instance that dies is started again in that role. When the whole deployment starts again, it starts as
planned.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.launch import run, storage
from pdctl.launch.deployment import Deployment, ServerRole, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE = "roles.json"
MODE, PORT = "--disaggregation-mode", "--disaggregation-bootstrap-port"


@dataclass(frozen=True, slots=True)
class TurnedInstance:
    """`ranks`: how many register with its bootstrap server; 0 for a decode."""

    role: ServerRole
    ranks: int


def note(directory: Path, instance: str, turned: TurnedInstance) -> None:
    """`directory`: the run's."""
    whole = {**read(directory), instance: turned}
    text = json.dumps({name: run.encode(one) for name, one in whole.items()}, indent=1)
    storage.save_whole(directory / FILE, text + "\n")


def forget(directory: Path) -> None:
    (directory / FILE).unlink(missing_ok=True)


def read(directory: Path) -> dict[str, TurnedInstance]:
    """Empty when none ever switched."""
    try:
        text = (directory / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        return {name: run.decode(TurnedInstance, value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise PdctlError(f"{directory / FILE} cannot be read: {error}", f"rm {directory / FILE}") from None


def applied(deployment: Deployment, turned: Mapping[str, TurnedInstance]) -> Deployment:
    """With the roles of now, and a router that would be started with them."""
    if not turned:
        return deployment
    roles = tuple(_spec(spec, turned.get(spec.instance)) for spec in deployment.roles)
    router = deployment.router
    if router is not None:
        moved = {spec.url: spec for was, spec in zip(deployment.roles, roles, strict=True) if spec.role != was.role}
        router = dataclasses.replace(router, argv=tuple(_words(router.argv, moved)))
    return dataclasses.replace(deployment, roles=roles, router=router)


def _spec(spec: Spec, turned: TurnedInstance | None) -> Spec:
    if turned is None or turned.role is spec.role:
        return spec
    argv = list(spec.argv)
    argv[argv.index(MODE) + 1] = turned.role.value
    prefill = turned.role is ServerRole.PREFILL and not spec.node
    port = int(argv[argv.index(PORT) + 1]) if prefill and PORT in argv else None
    return dataclasses.replace(
        spec, role=turned.role, argv=tuple(argv), bootstrap_port=port, ranks=turned.ranks if prefill else 0
    )


def _words(argv: tuple[str, ...], moved: Mapping[str, Spec]) -> Iterator[str]:
    """A router's command line: each of `moved` under the flag of its role, a prefill with its bootstrap port."""
    words = list(argv)
    while words:
        word = words.pop(0)
        spec = moved.get(words[0]) if words and word in ("--prefill", "--decode") else None
        if spec is None:
            yield word
            continue
        yield from (f"--{spec.role.value}", words.pop(0))
        if word == "--prefill" and words and not words[0].startswith("-"):
            words.pop(0)  # the port, or `none`
        if spec.bootstrap_port is not None:
            yield str(spec.bootstrap_port)
