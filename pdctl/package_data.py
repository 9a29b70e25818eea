"""Files that ship with pdctl and are not modules: tables, schemas, the page's style, topologies, checkpoints.

They are read in the same way from a directory and from a one-file build. `importlib.resources` can do that too, but it
loads tempfile and shutil, which costs a tenth of what `pdctl plan` takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from pdctl import program, user_files
from pdctl.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import ResourceLoader
    from zipfile import ZipFile

PACKAGE = Path(__file__).parent  # in a one-file build a path below the archive's, never opened as a file


class Data(Protocol):
    """A directory or a file of the package; a `pathlib.Path` where there are directories."""

    def __truediv__(self, name: str) -> Data: ...

    def read_text(self, encoding: str = "utf-8") -> str: ...


class ArchiveMember:
    """The same inside an archive. `path` begins with the archive's path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __truediv__(self, name: str) -> ArchiveMember:
        return ArchiveMember(self._path / name)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Raise FileNotFoundError where there is no such file."""
        loader = cast("ResourceLoader", __spec__.loader)
        try:
            return loader.get_data(str(self._path)).decode(encoding)
        except FileNotFoundError:
            raise
        except OSError as error:  # zipimport raises OSError without an errno
            raise FileNotFoundError(2, "not in this build", str(self._path)) from error


def data(name: str) -> Data:
    """`name`: a directory or file below the package, such as `engines/releases`."""
    return cast("Data", ArchiveMember(PACKAGE / name) if program.FILE else PACKAGE / name)


def location(name: str) -> Path:
    """The path of a package directory on disk: in the package itself, or where a one-file build unpacks it."""
    return cache() / name if program.FILE else PACKAGE / name


def unpack(path: Path, without: str = "") -> Path:
    """Unpack the files below `path`, as `location` gave it, unless they are there; skip names that end in `without`.

    Does nothing unless pdctl runs from one file. Raise StorageError if they cannot be written.
    """
    top = cache() if program.FILE else None
    if top is not None and path.is_relative_to(top):
        folder = path.relative_to(top).as_posix()
        done = top / f"{folder.replace('/', '.')}.without{without}"  # reading the archive's contents takes a while
        if done.exists():
            return path
        try:
            for name, file in _members(folder):
                if not (without and name.endswith(without)):
                    _write(file, name, top / name)
            done.touch()
        except OSError as error:
            fix = "set TMPDIR or XDG_CACHE_HOME to a directory that can be written"
            raise StorageError(f"cannot unpack {path.name} to {path}: {error.strerror}", fix) from error
    return path


def cache() -> Path:
    """Where a one-file build unpacks to. Raise StorageError if nothing can be written there."""
    found = program.cache()
    if not found:
        fix = "set TMPDIR or XDG_CACHE_HOME to a directory that can be written"
        raise StorageError("no directory to unpack files of this build to: neither ~/.cache nor /tmp can be used", fix)
    return Path(found)


def _members(name: str) -> Iterator[tuple[str, ZipFile]]:
    from zipfile import ZipFile

    head = f"{PACKAGE.relative_to(program.FILE).as_posix()}/"
    with ZipFile(program.FILE) as archive:
        for each in archive.namelist():
            if each.startswith(f"{head}{name}/") and not each.endswith("/"):
                yield each.removeprefix(head), archive


def _write(archive: ZipFile, name: str, target: Path) -> None:
    """Write the file whole or not at all, even if another process writes it at the same time."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    user_files.write_whole(target, archive.read(f"{PACKAGE.relative_to(program.FILE).as_posix()}/{name}"))
