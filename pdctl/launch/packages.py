"""Whether the Pythons that shall start SGLang and its router have them, in the release the commands were made for."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.versions import parse, resolve, spell
from pdctl.errors import UsageError
from pdctl.launch.targets import Obstacle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.launch.deployment import Deployment, Spec

# Module of a command → the package it comes with.
PACKAGES = {"sglang.launch_server": "sglang", "sglang_router.launch_router": "sglang-router"}
PATIENCE = 60.0  # seconds for a Python to look at its own packages; one that takes longer is not asked again
ASK = """
import sys, importlib.metadata as metadata, importlib.util as util
package, module = sys.argv[1:]
try:
    print("version", metadata.version(package))
except metadata.PackageNotFoundError:
    print("version" if util.find_spec(module.partition(".")[0]) else "missing")
"""


class Asked(NamedTuple):
    python: str
    package: str
    module: str


def obstacles(deployment: Deployment) -> Iterator[Obstacle]:
    """Found before a model loads: a router that is not there would else be missed when all servers are up."""
    wanted: dict[Asked, list[Spec]] = {}
    for spec in deployment.specs:
        if spec.argv[1:2] == ("-m",) and spec.argv[2] in PACKAGES and shutil.which(spec.argv[0]):
            wanted.setdefault(Asked(spec.argv[0], PACKAGES[spec.argv[2]], spec.argv[2]), []).append(spec)
    for asked, specs in wanted.items():
        said = _installed(asked, dict(specs[0].env))
        if said == "missing":
            message = f"{', '.join(spec.name for spec in specs)}: {asked.python} has no {asked.package}"
            key = "engine.command" if asked.package == "sglang" else "router.command"
            fix = f"{asked.python} -m pip install {asked.package}, or set {key} in the topology"
            yield Obstacle("package-missing", message, fix)
        elif asked.package == "sglang":
            yield from _release(asked, said.removeprefix("version").strip(), deployment.release)


def _release(asked: Asked, installed: str, planned: str) -> Iterator[Obstacle]:
    """Flags, ports and rules of another release: nothing for a build whose number says nothing."""
    try:
        other = resolve(installed).known != resolve(planned).known if planned else False
        number = spell(parse(installed)) if other else ""
    except UsageError:  # a branch's own number
        return
    if other:
        message = f"{asked.python} has sglang {installed}, and the commands are made for {planned}"
        yield Obstacle("other-release", message, f"--set engine.version={number}")


def _installed(asked: Asked, env: dict[str, str]) -> str:
    """`version 0.5.23`, `version` where the package does not tell, `missing`; "" where the Python cannot be asked."""
    command = [asked.python, "-c", ASK, asked.package, asked.module]
    try:
        done = subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("version", "missing"))]
    return lines[-1] if lines else ""
