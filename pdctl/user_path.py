"""Paths that a user wrote, and where pdctl keeps its runs: `~` stands for a home directory, if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def expanded(path: str) -> Path:
    """`~` and `~USER` resolved. Raise UsageError where that home is unknown: no such user, or a bare uid."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0][1:]
        who = f"there is no user `{user}` here" if user else "HOME is not set and this user has no home directory"
        raise UsageError(f"{path}: {who}", "write the whole path, or set HOME or PDCTL_HOME=DIR") from None


def state_directory(environ: Mapping[str, str]) -> Path:
    """$PDCTL_HOME | $XDG_STATE_HOME/pdctl | ~/.local/state/pdctl"""
    if environ.get("PDCTL_HOME"):
        return expanded(environ["PDCTL_HOME"])
    return expanded(environ.get("XDG_STATE_HOME") or "~/.local/state") / "pdctl"
