"""roles.json of a run's directory: the instances that switched roles while it serves, and what runs because of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import PdctlError
from pdctl.launch import storage
from pdctl.launch.deployment import Deployment, ServerRole, Spec
from pdctl.launch.run_record import LARGEST, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROLES_FILE = "roles.json"
MODE, PORT = "--disaggregation-mode", "--disaggregation-bootstrap-port"


@dataclass(frozen=True, slots=True)
class TurnedInstance:
    """An instance that switched roles. `ranks`: how many register with its bootstrap server; 0 for a decode."""

    role: ServerRole
    ranks: int


def note_role(directory: Path, instance: str, turned: TurnedInstance) -> None:
    """Record an instance's new role. `directory`: the run's."""
    whole = {**read_roles(directory), instance: turned}
    text = json.dumps({name: encode(one) for name, one in whole.items()}, indent=1)
    storage.save_whole(directory / ROLES_FILE, text + "\n")


def forget_roles(directory: Path) -> None:
    (directory / ROLES_FILE).unlink(missing_ok=True)


def read_roles(directory: Path) -> dict[str, TurnedInstance]:
    """Instance → its new role; empty if none has switched."""
    try:
        data = user_files.read_regular(directory / ROLES_FILE, LARGEST)
        return {name: decode(TurnedInstance, value) for name, value in json.loads(data).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise PdctlError(f"{directory / ROLES_FILE} cannot be read: {error}", f"rm {directory / ROLES_FILE}") from None


def with_roles(deployment: Deployment, turned: Mapping[str, TurnedInstance]) -> Deployment:
    """`deployment` with the current roles, and with the router command line that matches them."""
    if not turned:
        return deployment
    roles = tuple(_in_role(spec, turned.get(spec.instance)) for spec in deployment.roles)
    router = deployment.router
    if router is not None:
        moved = {spec.url: spec for was, spec in zip(deployment.roles, roles, strict=True) if spec.role != was.role}
        router = dataclasses.replace(router, argv=tuple(_router_words(router.argv, moved)))
    return dataclasses.replace(deployment, roles=roles, router=router)


def _in_role(spec: Spec, turned: TurnedInstance | None) -> Spec:
    if turned is None or turned.role is spec.role:
        return spec
    argv = list(spec.argv)
    argv[argv.index(MODE) + 1] = turned.role.value
    prefill = turned.role is ServerRole.PREFILL and not spec.node
    port = int(argv[argv.index(PORT) + 1]) if prefill and PORT in argv else None
    return dataclasses.replace(
        spec, role=turned.role, argv=tuple(argv), bootstrap_port=port, ranks=turned.ranks if prefill else 0
    )


def _router_words(argv: tuple[str, ...], moved: Mapping[str, Spec]) -> Iterator[str]:
    """A router's command line with each of `moved` under its new role's flag, a prefill with its bootstrap port."""
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
