"""Find the standard library modules that a one-file executable needs: those that pdctl and its libraries import."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Imported by name at run time: by the interpreter's start, by worker processes, as codecs of logs and host names.
NAMED = (
    "encodings.aliases", "encodings.ascii", "encodings.cp437", "encodings.idna",
    "encodings.latin_1", "encodings.punycode",
    "encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_16", "encodings.utf_16_le",
    "encodings.utf_32", "encodings.utf_8", "encodings.utf_8_sig", "io", "linecache",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.resource_tracker", "multiprocessing.spawn", "multiprocessing.synchronize",
    "multiprocessing.queues",
    "runpy", "sre_compile", "traceback", "warnings", "zipimport",
)  # fmt: skip
# Imported by a needed module, but in a function that pdctl never calls.
UNREACHED = (
    "bdb", "cmd", "code", "codeop", "ctypes.macholib", "ctypes.wintypes", "curses", "distutils", "doctest", "ensurepip",
    "ftplib", "http.server", "idlelib", "IPython", "lib2to3", "mimetypes", "msilib", "nturl2path", "pdb", "pydoc",
    "pydoc_data", "readline", "rlcompleter", "smtplib", "socketserver", "sqlite3", "test", "tkinter", "tomllib",
    "turtle",
    "unittest", "venv", "webbrowser", "winreg", "wsgiref", "xml.dom", "xmlrpc", "__phello__", "imaplib", "optparse",
    "_pydecimal", "_pyio", "_osx_support", "_aix_support", "_bootsubprocess", "http.cookiejar", "http.cookies",
    "importlib._bootstrap", "importlib._bootstrap_external", "plistlib", "py_compile", "pty",
)  # fmt: skip


def closure(library: Path, code: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files below `library` that the modules in `code` reach through import statements, in functions too.

    Raise FileNotFoundError if there is no library: an executable without one does not start.
    """
    if not (library / "encodings").is_dir():
        raise FileNotFoundError(f"{library}: not Python's standard library: it has no encodings")
    waiting = list(NAMED)
    for name, content in code.items():
        if name.endswith(".py"):
            waiting += _imports(content, name.removesuffix(".py").split("/"))
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module.startswith(tuple(f"{name}." for name in UNREACHED)) or module in UNREACHED:
            continue
        seen.add(module)
        parts = module.split(".")
        waiting += [".".join(parts[:at]) for at in range(1, len(parts))]
        for path in (library.joinpath(*parts).with_suffix(".py"), library.joinpath(*parts, "__init__.py")):
            if path.is_file():
                name = path.relative_to(library).as_posix()
                found[name] = path.read_bytes()
                waiting += _imports(found[name], name.removesuffix(".py").split("/"))
    return found


def _imports(content: bytes, parts: list[str]) -> Iterator[str]:
    """Absolute names of all imported modules, and of each NAME in `from PACKAGE import NAME`, which may be one."""
    package = parts[:-1]
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
