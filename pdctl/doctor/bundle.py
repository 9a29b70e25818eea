"""A support bundle: what doctor saw, packed into one archive with secrets and prompts taken out."""

from __future__ import annotations

import io
import os
import tarfile
import time
from typing import TYPE_CHECKING

from pdctl.doctor import redaction
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def write(path: Path, files: Mapping[str, str], known: Iterable[str] = ()) -> Counter[str]:
    """Pack `files` (name → text) under one directory; whole or not at all. Returns what was taken out.

    `known`: secrets of this process, taken out wherever they stand.

    Raises UsageError when `path` cannot be written.
    """
    clean, taken = redaction.of_files(files, known)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    root = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    try:
        with tarfile.open(draft, "w:gz") as archive:
            for name, text in sorted(clean.items()):
                _add(archive, f"{root}/{name}", text)
            _add(archive, f"{root}/REDACTED.txt", _account(taken))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(
            f"--bundle {path}: {error.strerror or error}", "give a path in a directory that exists"
        ) from None
    return taken


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", errors="replace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _account(taken: Counter[str]) -> str:
    if not taken:
        return "Nothing was taken out.\n"
    return "".join(f"{count} × {name}\n" for name, count in sorted(taken.items()))
