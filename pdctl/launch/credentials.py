"""The deployment secret of one run: minted when the run is opened, handed to the processes that know what it is for.

It lies in the run's directory, mode 0600, and nowhere else: not in run.json, not in a command line, not in a log. The
processes are told its path in their environment. The file's existence says whether the run has a secret.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.http_auth import ADMIN_VARIABLE, KEY_VARIABLE, read_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.launch.deployment import Deployment, Spec

FILE = "deployment-secret"
KEY_FLAGS = {"--api-key": KEY_VARIABLE, "--admin-api-key": ADMIN_VARIABLE}
ENGINE, ROUTER = "pdctl.engine", "pdctl.router"


class Holders(NamedTuple):
    """Names of the processes that are given the secret, and in words why others are not; empty: none is left out."""

    names: frozenset[str]
    why_not: str


def holders(deployment: Deployment) -> Holders:
    """Who can use the secret.

    One engine that cannot (real SGLang) leaves all engines without it, because they talk to each other; the router and
    the engines are independent, because no request that a client may send needs the secret.
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
    """Write a new secret if one is wanted and somebody can use it; remove the one of an earlier run in any case."""
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
    """`specs` as they are started: keys not on the command line, the secret's path in the environment of its holders.

    Everybody else gets an empty variable: none inherits the secret of whoever ran `pdctl launch`. A path that the
    topology's own `env` names is left as it is.
    """
    file = directory / FILE
    known = holders(deployment).names if file.exists() else frozenset()
    return tuple(_equipped(spec, str(file) if spec.name in known else "") for spec in specs)


def _equipped(spec: Spec, file: str) -> Spec:
    env = spec.env if ENV in dict(spec.env) else (*spec.env, (ENV, file))
    argv = spec.argv
    if _runs(spec, ENGINE) or _runs(spec, ROUTER):  # of other programs nobody knows where else they would look
        for flag, variable in KEY_FLAGS.items():
            argv, value = _without(argv, flag)
            env = (*env, (variable, value)) if value else env
    return dataclasses.replace(spec, argv=argv, env=env)


def _without(argv: tuple[str, ...], flag: str) -> tuple[tuple[str, ...], str]:
    """The command line without `flag` and its value, and the value."""
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[:at] + argv[at + 2 :], argv[at + 1]
        if word.startswith(f"{flag}="):
            return argv[:at] + argv[at + 1 :], word.partition("=")[2]
    return argv, ""


def api_key(deployment: Deployment) -> str:
    """The key that its servers ask for, as their command lines say; empty where there is none.

    Raise UsageError if the file that holds it cannot be read.
    """
    for spec in (deployment.router, *deployment.roles):
        key = _key(spec.argv, dict(spec.env)) if spec is not None else ""
        if key:
            return key
    return os.environ.get(KEY_VARIABLE, "")  # what this process has, those it starts have as well


def _key(argv: Sequence[str], env: Mapping[str, str]) -> str:
    for word, value in _flags(argv):
        if word == "--api-key":
            return value
        if word == "--api-key-file":
            return read_key(Path(value))
    return env.get(KEY_VARIABLE, "")


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every word that could be a flag, with what follows it."""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        yield name, value if equals else following


def decision(deployment: Deployment, directory: Path) -> str:
    """One line for the log: who knows the secret of this run."""
    found = holders(deployment)
    if not (directory / FILE).exists():
        why = found.why_not if not found.names else "security.deployment-secret is false"
        return f"deployment secret: none; {why}: registrations and admin requests are believed from whoever can connect"
    known = ", ".join(_instances(deployment, found.names))
    return f"deployment secret: {known}" + (f"; {found.why_not}" if found.why_not else "")


def _instances(deployment: Deployment, names: frozenset[str]) -> Sequence[str]:
    return list(dict.fromkeys(spec.instance for spec in deployment.specs if spec.name in names))


def _runs(spec: Spec, module: str) -> bool:
    """Whether `python -m MODULE` is in the command, also behind words such as `numactl --localalloc`."""
    return ("-m", module) in zip(spec.argv, spec.argv[1:], strict=False)
