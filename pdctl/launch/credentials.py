"""The deployment secret of one run: minted when the run is opened and given to the processes that can use it.

It is stored in the run's directory with mode 0600 and nowhere else: not in run.json, a command line or a log. The
processes get its path in their environment. A run has a secret exactly if the file exists.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.http_auth import ADMIN_VARIABLE, KEY_VARIABLE, read_key
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.launch.deployment import Deployment, Spec

FILE = "deployment-secret"
KEY_FLAGS = {"--api-key": KEY_VARIABLE, "--admin-api-key": ADMIN_VARIABLE}
ENGINE, ROUTER = "pdctl.engine", "pdctl.router"


class Holders(NamedTuple):
    """Names of the processes that get the secret. `why_not`: why the others do not; empty if all of them get it."""

    names: frozenset[str]
    why_not: str


def holders(deployment: Deployment) -> Holders:
    """The processes that can use the secret.

    If one engine cannot use it (real SGLang), no engine gets it, because engines talk to each other. Router and engines
    are decided independently, because no request that a client may send needs the secret.
    """
    foreign = sorted({spec.instance for spec in deployment.roles if not _runs(spec, ENGINE)})
    engines = frozenset() if foreign else frozenset(spec.name for spec in deployment.roles)
    router = deployment.router
    routers = frozenset({router.name} if router and _runs(router, ROUTER) else ())
    reasons = []
    if foreign:
        reasons.append(f"engines talk without it ({', '.join(foreign)}: not pdctl's engine)")
    if router and not routers:
        reasons.append("the router does not use it (not pdctl's router)")
    return Holders(engines | routers, "; ".join(reasons))


def mint(directory: Path, deployment: Deployment, wanted: bool) -> None:
    """Remove the secret of an earlier run; write a new one if it is wanted and some process can use it."""
    forget(directory)
    if wanted and holders(deployment).names:
        DeploymentSecret.mint().write(directory / FILE)


def forget(directory: Path) -> None:
    (directory / FILE).unlink(missing_ok=True)


def read(directory: Path) -> DeploymentSecret | None:
    """The run's secret; None if it has none. Raise UsageError if its file cannot be used."""
    file = directory / FILE
    return DeploymentSecret.read(file) if file.exists() else None


def equipped(specs: Iterable[Spec], deployment: Deployment, directory: Path) -> tuple[Spec, ...]:
    """`specs` as they are started: API keys moved off the command line, the secret's path in its holders' environment.

    All other processes get an empty variable, so that none inherits the secret of the shell that ran `pdctl launch`.
    A path set in the topology's own `env` is kept.
    """
    file = directory / FILE
    known = holders(deployment).names if file.exists() else frozenset()
    return tuple(_equipped(spec, str(file) if spec.name in known else "") for spec in specs)


def _equipped(spec: Spec, file: str) -> Spec:
    env = spec.env if ENV in dict(spec.env) else (*spec.env, (ENV, file))
    argv = spec.argv
    if _runs(spec, ENGINE) or _runs(spec, ROUTER):  # other programs may not read the variable
        for flag, variable in KEY_FLAGS.items():
            argv, value = _without(argv, flag)
            env = (*env, (variable, value)) if value else env
    return dataclasses.replace(spec, argv=argv, env=env)


def _without(argv: tuple[str, ...], flag: str) -> tuple[tuple[str, ...], str]:
    """The command line without `flag` and its value, and that value (empty if the flag is absent)."""
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[:at] + argv[at + 2 :], argv[at + 1]
        if word.startswith(f"{flag}="):
            return argv[:at] + argv[at + 1 :], word.partition("=")[2]
    return argv, ""


def api_key(deployment: Deployment) -> str:
    """The API key that the servers require, taken from their command lines or environment; empty if there is none.

    Raise UsageError if the key's file cannot be read.
    """
    for spec in (deployment.router, *deployment.roles):
        key = _key(spec.argv, dict(spec.env)) if spec is not None else ""
        if key:
            return key
    return os.environ.get(KEY_VARIABLE, "")  # the started processes inherit this process's environment


def _key(argv: Sequence[str], env: Mapping[str, str]) -> str:
    for word, value in _flags(argv):
        if word == "--api-key":
            return value
        if word == "--api-key-file":
            return read_key(Path(value))
    return env.get(KEY_VARIABLE, "")


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every word that could be a flag, with the value that follows it."""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        yield name, value if equals else following


def decision(deployment: Deployment, directory: Path) -> str:
    """One line for the log: which processes know the secret of this run."""
    found = holders(deployment)
    if not (directory / FILE).exists():
        why = found.why_not if not found.names else "security.deployment-secret is false"
        return f"deployment secret: none; {why}: registrations and admin requests are believed from whoever can connect"
    known = ", ".join(_instances(deployment, found.names))
    return f"deployment secret: {known}" + (f"; {found.why_not}" if found.why_not else "")


def _instances(deployment: Deployment, names: frozenset[str]) -> Sequence[str]:
    return list(dict.fromkeys(spec.instance for spec in deployment.specs if spec.name in names))


def _runs(spec: Spec, module: str) -> bool:
    """Whether the command contains `python -m MODULE`, possibly behind a prefix such as `numactl --localalloc`."""
    return ("-m", module) in zip(spec.argv, spec.argv[1:], strict=False)
