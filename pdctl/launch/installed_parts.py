"""Which Python starts each process, and whether it has the engine, the router and the planned SGLang release."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import ssl
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import __version__, program
from pdctl.engines.kinds import ENGINES, MODULES, RELEASED
from pdctl.engines.versions import parse, resolve, spell
from pdctl.errors import UsageError
from pdctl.launch.runtime import Obstacle
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.launch.deployment import Deployment, Spec


# Packages of the extra `engine` that the started processes import; NIXL is optional (without it, shm is used).
ENGINE_PARTS = (
    "torch",
    "zmq",
    "msgspec",
    "safetensors",
    "tokenizers",
    "numpy",
    "jinja2",
    "fastapi",
    "uvicorn",
    "orjson",
)
ROUTER_PARTS = ("orjson", "httptools")
# Packages that a pip install has as well, because the extra requires them.
ALSO = {"pdctl.engine": ("prometheus_client",), "pdctl.router": ()}
PATIENCE = 20.0  # seconds for a Python to find its packages
ASK = "import sys, importlib.util as u; print('has', *[n for n in sys.argv[1:] if u.find_spec(n) is None])"
# Module of a command → the package that provides it.
PACKAGES = dict(MODULES.values())
VERSION_PATIENCE = 60.0  # seconds for a Python to report a package's version; a slower one is not asked again
ASK_VERSION = """
import sys, importlib.metadata as metadata, importlib.util as util
package, module = sys.argv[1:]
try:
    print("version", metadata.version(package))
except metadata.PackageNotFoundError:
    print("version" if util.find_spec(module.partition(".")[0]) else "missing")
"""


class Interpreter(NamedTuple):
    """A Python. `python` "": none was found. `missing`: packages it lacks, in the order they were asked for."""

    python: str
    missing: tuple[str, ...]


def parts(modules: Iterable[str]) -> tuple[str, ...]:
    """The packages that `modules` need; () if none of them is the embedded engine or router."""
    wanted = {"pdctl.engine": ENGINE_PARTS, "pdctl.router": ROUTER_PARTS}
    found = [name for module in wanted if module in modules for name in wanted[module]]
    if program.FILE:
        found += [name for module in wanted if module in modules for name in ALSO[module]]
    return tuple(dict.fromkeys(found))


def find_interpreter(wanted: tuple[str, ...]) -> Interpreter:
    """The first Python that has all of `wanted`; if there is none, the first Python."""
    if not program.FILE:
        return Interpreter(sys.executable, tuple(name for name in wanted if find_spec(name) is None))
    return _find(wanted, program.pythons())


@cache
def _find(wanted: tuple[str, ...], pythons: tuple[str, ...]) -> Interpreter:
    asked: list[Interpreter] = []
    for python in pythons:
        answer = _ask(python, wanted)
        if not answer.missing:
            return answer
        asked.append(answer)
    return asked[0] if asked else Interpreter("", wanted)


def _ask(python: str, wanted: tuple[str, ...]) -> Interpreter:
    """What `python` lacks. One that cannot be started or does not answer in time counts as lacking everything."""
    try:
        done = subprocess.run(
            [python, "-c", ASK, *wanted],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Interpreter(python, wanted)
    words = done.stdout.split()
    return Interpreter(python, tuple(words[1:]) if words[:1] == ["has"] and not done.returncode else wanted)


def equipped(deployment: Deployment) -> Deployment:
    """In a one-file build, `deployment` run by the Python that has the packages, if there is one; else unchanged."""
    wanted = parts({program.module_of(spec.argv) for spec in deployment.specs}) if program.FILE else ()
    found = find_interpreter(wanted) if wanted else Interpreter("", ())
    if not found.python or found.missing:
        return deployment

    def with_python(spec: Spec) -> Spec:
        ours = spec.argv[1:2] == (program.FILE,)
        return dataclasses.replace(spec, argv=(found.python, *spec.argv[1:])) if ours else spec

    roles = tuple(map(with_python, deployment.roles))
    router = with_python(deployment.router) if deployment.router else None
    return dataclasses.replace(deployment, roles=roles, router=router)


class AskedPython(NamedTuple):
    python: str
    package: str
    module: str


def obstacles(deployment: Deployment) -> Iterator[Obstacle]:
    """Packages missing or of another release, found before a model loads instead of when all servers are up."""
    wanted: dict[AskedPython, list[Spec]] = {}
    for spec in deployment.specs:
        if spec.argv[1:2] == ("-m",) and spec.argv[2] in PACKAGES and shutil.which(spec.argv[0]):
            wanted.setdefault(AskedPython(spec.argv[0], PACKAGES[spec.argv[2]], spec.argv[2]), []).append(spec)
    for asked, specs in wanted.items():
        said = _installed(asked, dict(specs[0].env))
        if said == "missing":
            message = f"{', '.join(spec.name for spec in specs)}: {asked.python} has no {asked.package}"
            key = "engine.command" if asked.package == ENGINES[RELEASED].package else "router.command"
            fix = f"{asked.python} -m pip install {asked.package}, or set {key} in the topology"
            yield Obstacle("package-missing", message, fix)
        elif asked.package == ENGINES[RELEASED].package:
            yield from _release(asked, said.removeprefix("version").strip(), deployment.release)


def _release(asked: AskedPython, installed: str, planned: str) -> Iterator[Obstacle]:
    """An obstacle if the installed release has other flags, ports and rules; none if its version is not a release."""
    try:
        other = resolve(installed).known != resolve(planned).known if planned else False
        number = spell(parse(installed)) if other else ""
    except UsageError:  # a branch with its own version scheme
        return
    if other:
        message = f"{asked.python} has sglang {installed}, and the commands are made for {planned}"
        yield Obstacle("other-release", message, f"--set engine.version={number}")


def _installed(asked: AskedPython, env: dict[str, str]) -> str:
    """`version 0.5.23`, `version` if the package has no metadata, `missing`, or "" if the Python cannot be asked."""
    command = [asked.python, "-c", ASK_VERSION, asked.package, asked.module]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=VERSION_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("version", "missing"))]
    return lines[-1] if lines else ""


class InstalledPart(NamedTuple):
    """`detail`: what the part provides, or what does not work without it. `fix`: how to install it, "" if present."""

    name: str
    present: bool
    detail: str
    fix: str = ""


class Installation(NamedTuple):
    """`file`: the archive, the executable, or the package's directory. `libc` "": statically linked or unknown."""

    version: str
    kind: str
    file: str
    python: str
    libc: str
    parts: tuple[InstalledPart, ...]


def inspect() -> Installation:
    """Describe this installation. A one-file build starts a Python to ask for its packages; no network is used."""
    return Installation(
        version=__version__,
        kind=program.kind().value,
        file=program.FILE or str(Path(__file__).resolve().parents[1]),
        python=f"{platform.python_version()}, {'built in' if _own_python() else sys.executable}",
        libc="" if _own_python() else " ".join(platform.libc_ver()).strip(),
        parts=(_engine(), _router(), _zstd(), _certificates()),
    )


def _own_python() -> bool:
    return program.kind() is program.Kind.EXECUTABLE


def _engine() -> InstalledPart:
    return _served("engine", "pdctl.engine", "launch of the embedded engine")


def _router() -> InstalledPart:
    return _served("router", "pdctl.router", "launch of pdctl's own router")


def _served(name: str, module: str, use: str) -> InstalledPart:
    found = find_interpreter(parts({module}))
    if found.python and not found.missing:
        return InstalledPart(name, True, f"{found.python} has what it needs")
    lacking = f"{found.python} lacks {', '.join(found.missing)}" if found.python else "there is no python3 on PATH"
    fix = program.install_command(found.missing, "engine", found.python or "python3")
    return InstalledPart(name, False, f"no {use}: {lacking}", fix)


def _zstd() -> InstalledPart:
    if find_spec("zstandard"):
        return InstalledPart("zstd", True, ".zst logs are read")
    fix = f"{sys.executable} -m pip install zstandard"
    return InstalledPart("zstd", False, ".zst logs cannot be read", fix)


def _certificates() -> InstalledPart:
    """Where TLS looks for the certificates of public authorities, which https:// needs."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return InstalledPart("tls", True, f"{ssl.OPENSSL_VERSION}, authorities from {paths.cafile}")
    if paths.capath and any(Path(paths.capath).iterdir()):
        return InstalledPart("tls", True, f"{ssl.OPENSSL_VERSION}, authorities from {paths.capath}")
    fix = "SSL_CERT_FILE=/path/to/ca.pem"
    for command in ("apt-get", "apk", "dnf"):
        if shutil.which(command):
            fix = f"{command} {'add' if command == 'apk' else 'install'} ca-certificates"
            break
    return InstalledPart("tls", False, f"{ssl.OPENSSL_VERSION}, but no authorities: https:// will be refused", fix)
