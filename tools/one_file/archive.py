"""The contents of a one-file build, archived reproducibly: the same bytes each time."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
MADE = (1980, 1, 1, 0, 0, 0)  # the modification time of every member
SKIPPED = {".pyi", ".so", ".pyc", ".typed"}
# Modules that pdctl never imports: rich's highlighting and Markdown need Pygments and markdown-it.
UNUSED = (
    "rich/syntax.py", "rich/markdown.py", "rich/traceback.py", "rich/diagnose.py",
    "rich/__main__.py", "jsonschema/benchmarks/", "jsonschema/tests/",
    "pyrsistent/_test_", "attr/_cmp_tests",
)  # fmt: skip
Files = dict[str, bytes]


def package() -> Files:
    """pdctl as in its wheel: the package with the topologies inside."""
    found = {f"pdctl/{name}": content for name, content in _below(ROOT / "pdctl")}
    return found | {f"pdctl/topologies/{name}": content for name, content in _below(ROOT / "topologies")}


def pinned() -> Files:
    """The libraries of requirements.txt, downloaded and verified by pip. Raise SystemExit if pip cannot do so."""
    with tempfile.TemporaryDirectory(prefix="pdctl-wheels-") as folder:
        words = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", folder]
        form = ["--platform", "manylinux2014_x86_64", "--python-version", "3.11", "--implementation", "cp"]
        command = [sys.executable, "-m", "pip", "download", *words, *form, "--requirement", str(REQUIREMENTS)]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("error: pip could not download the libraries of a one-file build (see above)")
        found: Files = {}
        for wheel in sorted(Path(folder).glob("*.whl")):
            with ZipFile(wheel) as archive:
                found |= {name: archive.read(name) for name in archive.namelist() if _wanted(name)}
        return found


def installed() -> Files:
    """The installed versions of these libraries: for a quick check only, because other versions give other bytes."""
    found: Files = {}
    for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            with contextlib.suppress(metadata.PackageNotFoundError):  # a newer jsonschema needs other libraries
                for file in metadata.distribution(line.partition("==")[0]).files or ():
                    if _wanted(file.as_posix()) and ".." not in file.parts:
                        found[file.as_posix()] = Path(str(file.locate())).read_bytes()
    return found


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of `files`, sorted by name, all with the same modification time."""
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            member = ZipInfo(name, MADE)
            member.external_attr = 0o644 << 16
            member.create_system = 3  # Linux, wherever the archive is built
            archive.writestr(member, files[name], ZIP_DEFLATED, 9)
    return stream.getvalue()


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and _wanted(path.name):
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _wanted(name: str) -> bool:
    """Whether a file is a module or data; of a distribution's metadata, only the licence is wanted."""
    path = Path(name)
    if path.parts[0].endswith(".dist-info"):
        return "licen" in name.lower() or path.name in {"COPYING", "AUTHORS"}
    return path.suffix not in SKIPPED and not path.parts[0].endswith(".data") and not name.startswith(UNUSED)
