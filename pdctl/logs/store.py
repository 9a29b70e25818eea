"""Where what is known about logs is kept between commands: beside the run, else in the user's cache directory.

RUN/index/ for logs under RUN/logs/ of a run of `pdctl launch`, else $XDG_CACHE_HOME/pdctl/logs (~/.cache/pdctl/logs).
Everything in it may be deleted at any time. A directory that cannot be written to is as good as none.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.user_files import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.logs.part import Part

MONTH = 30 * 86400.0  # seconds after which what nobody used is thrown away
_LOOK = 512  # files from which on the directory is tidied


def directory(part: Part, environ: Mapping[str, str]) -> Path:
    beside = Path(part.path).parent.parent
    if Path(part.path).parent.name == "logs" and (beside / "run.json").is_file():
        return beside / "index"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return expanded(cache) / "pdctl" / "logs"
    except UsageError:  # no home directory: nothing is kept
        return Path(os.devnull) / "pdctl"


def read(file: Path) -> bytes | None:
    """None when it is not there."""
    try:
        return file.read_bytes()
    except OSError:
        return None


def replace(file: Path, data: bytes) -> bool:
    """Whole or not at all: readers in other shells never see half of it. False when it cannot be written."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        return False
    _tidy(file.parent)
    return True


def _tidy(where: Path) -> None:
    """Throw away what was not written for a month, once there is enough to be worth a look."""
    with contextlib.suppress(OSError):
        entries = list(os.scandir(where))
        if len(entries) < _LOOK:
            return
        limit = time.time() - MONTH
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < limit:
                Path(entry.path).unlink(missing_ok=True)
