"""What this pdctl runs from, and the command that starts one of its modules again.

A source tree and a pip install are started as `python -m MODULE`. A one-file build (docs/install.md) is one archive:
`pdctl.pyz`, which a Python reads, or an executable, which has a Python of its own. It takes `-m MODULE` itself.
"""

from __future__ import annotations

import os
import stat
import sys
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = {"zmq": "pyzmq", "prometheus_client": "prometheus-client"}  # module → package, where the names differ
PYTHON = "PDCTL_PYTHON"  # the Python that a one-file build starts the embedded engine and router with


class Kind(Enum):
    """How this pdctl was installed. `SOURCE`: from a checkout or an editable install, not from site-packages."""

    SOURCE = "source"
    PIP = "pip"
    PYZ = "pyz"
    EXECUTABLE = "executable"


_ARCHIVE = getattr(__spec__.loader, "archive", "")  # only zipimport has it
FILE = os.path.abspath(_ARCHIVE) if _ARCHIVE else ""
"""The archive pdctl was loaded from, absolute; "" where its modules are files."""


def kind() -> Kind:
    if FILE:
        return Kind.EXECUTABLE if os.path.realpath(FILE) == os.path.realpath(sys.executable) else Kind.PYZ
    return Kind.PIP if {"site-packages", "dist-packages"} & set(__file__.split(os.sep)) else Kind.SOURCE


def cache() -> str:
    """A directory for what a one-file build unpacks: of this user and this build, in ~/.cache or for temporary files.

    It need not be there yet. "" where there is none that nobody else could have written to.
    """
    about = os.stat(FILE)
    build = f"{about.st_size:x}-{about.st_mtime_ns:x}"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base, name in ((home, "pdctl"), (os.environ.get("TMPDIR") or "/tmp", f"pdctl-{os.getuid()}")):
        if not os.path.isabs(base):  # this user has no home, or XDG_CACHE_HOME is not absolute and to be ignored
            continue
        top = os.path.join(base, name)
        try:
            os.makedirs(top, 0o700, exist_ok=True)
            made = os.lstat(top)
        except OSError:
            continue
        private = stat.S_ISDIR(made.st_mode) and made.st_uid == os.getuid() and not made.st_mode & 0o022
        if private and os.access(top, os.W_OK):
            return os.path.join(top, build)
    return ""


def command(module: str) -> tuple[str, ...]:
    """Start `module` of pdctl with this Python."""
    if not FILE:
        return (sys.executable, *(["-P"] if _can_leave_out_directory() else []), "-m", module)
    return (FILE, "-m", module) if kind() is Kind.EXECUTABLE else (sys.executable, FILE, "-m", module)


def served_command(module: str) -> tuple[str, ...]:
    """Start the embedded engine or router, which need more than the operator's verbs do.

    Of a one-file build: with $PDCTL_PYTHON, or the first python3 on PATH (`pdctl.launch.installed_parts` finds one
    that has the engine). No process is started to find out.
    """
    return (os.environ.get(PYTHON) or "python3", FILE, "-m", module) if FILE else (sys.executable, "-m", module)


def served_environment() -> dict[str, str]:
    """For a process of `served_command`: it imports nothing from the directory in which the operator happens to be.

    `python -m` looks there first, so that a `secrets.py` of the operator's would stand in for Python's own.
    """
    return {"PYTHONSAFEPATH": "1"} if not FILE and _can_leave_out_directory() else {}


def _can_leave_out_directory() -> bool:
    """Whether this Python can be told so (3.10 cannot), and would still find pdctl, which may be what lies there."""
    if sys.version_info < (3, 11):
        return False
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    first, *others = map(os.path.realpath, sys.path)
    return sys.flags.safe_path or first != root or root in others


def module_of(argv: Sequence[str]) -> str:
    """The module that `PYTHON -m MODULE …`, `PYTHON ARCHIVE -m MODULE …` or `EXECUTABLE -m MODULE …` starts; "": none.

    The middle form counts for this pdctl's own archive alone.
    """
    at = 2 if FILE and argv[1:2] == (FILE,) else 2 if tuple(argv[1:2]) == ("-P",) else 1
    return argv[at + 1] if tuple(argv[at : at + 1]) == ("-m",) and len(argv) > at + 1 else ""


def portable(argv: Sequence[str]) -> tuple[str, ...]:
    """The command as another machine starts it that has pdctl installed: neither our interpreter nor our file."""
    if FILE and tuple(argv[1:2]) == (FILE,):
        return ("python", *argv[2:])
    return ("python", *argv[1:]) if tuple(argv[:1]) in {(sys.executable,), (FILE,)} else tuple(argv)


def pythons() -> tuple[str, ...]:
    """The Pythons a one-file build may start the engine with, the first choice first: $PDCTL_PYTHON alone if set."""
    if chosen := os.environ.get(PYTHON):
        return (chosen,)
    import shutil  # late: only a launch needs it, and it loads bz2 and lzma

    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (shutil.which("python3", path=folder) for folder in folders if folder)
    return tuple(dict.fromkeys(path for path in found if path))


def install_command(missing: Sequence[str], extra: str, python: str = "") -> str:
    """What brings the modules that are missing. pdctl is in no package index: a checkout's extra, or their packages."""
    pip = f"{python or sys.executable} -m pip install"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not FILE and os.path.isfile(os.path.join(root, "pyproject.toml")):
        return f"{pip} -e '{root}[{extra}]'"
    return f"{pip} {' '.join(PACKAGES.get(name, name) for name in missing)}"


def run_module(argv: Sequence[str]) -> None:
    """`-m MODULE …`: be that module of pdctl. Exit with 2 for any other module."""
    module = argv[1] if len(argv) > 1 else ""
    if module.split(".")[0] != "pdctl":
        sys.stderr.write(f"error: -m starts modules of pdctl, not `{module}`\n  fix: pdctl --help lists the verbs\n")
        raise SystemExit(2)
    import runpy

    sys.argv = [sys.argv[0], *argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
