"""The wheel of one release: downloaded by pip, identified by file name and SHA-256, neither unpacked nor run."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = re.compile(r"(?P<package>[A-Za-z0-9_.]+)-(?P<version>[0-9][A-Za-z0-9.]*)[-.]")


class UnreadableError(Exception):
    """The wheel cannot be obtained or read; the message says why and what to do."""


@dataclass(frozen=True)
class Wheel:
    """A wheel. `name` and `sha256` are cited as the source of every fact that is read from it."""

    package: str
    version: str
    name: str
    sha256: str
    archive: zipfile.ZipFile
    parsed: dict[str, ast.Module] = field(default_factory=dict)
    walked: dict[int, list[ast.AST]] = field(default_factory=dict)

    def paths(self, *under: str) -> list[str]:
        """The Python files below any of these folders (or exactly these files), sorted."""
        return sorted(
            name
            for name in self.archive.namelist()
            if name.endswith(".py") and any(name == top or name.startswith(top.rstrip("/") + "/") for top in under)
        )

    def bytes(self, path: str) -> bytes | None:
        """One file; None if the wheel has no such file. Raise UnreadableError if it cannot be unpacked."""
        try:
            return self.archive.read(path)
        except KeyError:
            return None
        # RuntimeError: it needs a password. NotImplementedError: an unknown compression.
        except (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise UnreadableError(
                f"{self.name}: {path} cannot be unpacked: {error}; download the wheel again"
            ) from None

    def module(self, path: str) -> ast.Module | None:
        """The syntax tree of one file; None if there is no such file. Raise UnreadableError if it cannot be parsed."""
        if path not in self.parsed:
            text = self.bytes(path)
            if text is None:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # "\d" in strings that are not ours
                warnings.simplefilter("ignore", DeprecationWarning)
                try:
                    self.parsed[path] = ast.parse(text)
                except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # ValueError: a zero byte
                    raise UnreadableError(f"{self.name}: {path} is no Python that this Python reads: {error}") from None
        return self.parsed[path]

    def modules(self, *under: str, naming: str = "") -> Iterator[tuple[str, ast.Module]]:
        """The files below these folders as (path, tree); with `naming`, only files whose text matches it."""
        wanted = re.compile(naming.encode())
        for path in self.paths(*under):
            if not naming or wanted.search(self.bytes(path) or b""):
                module = self.module(path)
                if module is not None:
                    yield path, module

    def nodes(self, module: ast.Module) -> list[ast.AST]:
        """Every node of a tree, which is walked only once for all readers."""
        if id(module) not in self.walked:
            self.walked[id(module)] = list(ast.walk(module))
        return self.walked[id(module)]


def open_wheel(path: Path) -> Wheel:
    found = NAME.match(path.name)
    if found is None:
        raise UnreadableError(f"{path}: this is no wheel's or source archive's name")
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UnreadableError(f"{path} cannot be read as a wheel: {error}; download it again") from None
    package = found["package"].replace("_", "-")
    return Wheel(package, found["version"], path.name, hashlib.sha256(path.read_bytes()).hexdigest(), archive)


def download(package: str, version: str, folder: Path) -> Path:
    """The wheel of one release; not downloaded if it is already in `folder`. Raise UnreadableError if pip has none."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (have := _wheels(package, version, folder)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(folder), f"{package}=={version}"]
        ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=900, check=False)
        have = _wheels(package, version, folder)
        if ended.returncode or not have:
            last = (ended.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise UnreadableError(f"pip has no wheel of {package} {version}: {last}")
    return have[0]


def _wheels(package: str, version: str, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
