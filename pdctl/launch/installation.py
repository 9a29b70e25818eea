"""What this pdctl is and can: the file it runs from, its Python, and what each missing part would bring."""

from __future__ import annotations

import platform
import shutil
import ssl
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pdctl import __version__, program
from pdctl.launch import interpreter
from pdctl.launch.preflight import INSTALL


class Part(NamedTuple):
    """`detail`: what is there, or what is lacking without it. `fix`: the command that brings it, "" if it is there."""

    name: str
    present: bool
    detail: str
    fix: str = ""


class Installation(NamedTuple):
    """`file`: the archive or executable, or the package's directory. `libc` "": linked statically or not known."""

    version: str
    kind: str
    file: str
    python: str
    libc: str
    parts: tuple[Part, ...]


def inspect() -> Installation:
    """Starts a Python to ask for its packages if this is a one-file build; contacts nobody."""
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


def _engine() -> Part:
    return _served("engine", "pdctl.engine", "launch of the embedded engine")


def _router() -> Part:
    return _served("router", "pdctl.router", "launch of pdctl's own router")


def _served(name: str, module: str, use: str) -> Part:
    found = interpreter.find(interpreter.parts({module}))
    if found.python and not found.missing:
        return Part(name, True, f"{found.python} has what it needs")
    lacking = f"{found.python} lacks {', '.join(found.missing)}" if found.python else "there is no python3 on PATH"
    fix = f"{found.python or 'python3'} -m {INSTALL}"
    return Part(name, False, f"no {use}: {lacking}", fix)


def _zstd() -> Part:
    if find_spec("zstandard"):
        return Part("zstd", True, ".zst logs are read")
    fix = f"{sys.executable} -m pip install zstandard"
    if _own_python():
        fix = "zstd -dc FILE.zst > FILE"
    return Part("zstd", False, ".zst logs cannot be read", fix)


def _certificates() -> Part:
    """Where certificates of public authorities are looked for: https:// needs them."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return Part("tls", True, f"{ssl.OPENSSL_VERSION}, authorities from {paths.cafile}")
    if paths.capath and any(Path(paths.capath).iterdir()):
        return Part("tls", True, f"{ssl.OPENSSL_VERSION}, authorities from {paths.capath}")
    fix = "SSL_CERT_FILE=/path/to/ca.pem"
    for command in ("apt-get", "apk", "dnf"):
        if shutil.which(command):
            fix = f"{command} {'add' if command == 'apk' else 'install'} ca-certificates"
            break
    return Part("tls", False, f"{ssl.OPENSSL_VERSION}, but no authorities: https:// will be refused", fix)
