"""file:line, short on a terminal and a hyperlink there (OSC 8), as it was given everywhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.render.term import Term


class Places:
    """`files`: every file that will be named; on a terminal each is called by the shortest tail that is its own."""

    def __init__(self, files: Iterable[str], term: Term) -> None:
        self._term = term
        self._names = shortest(files) if term.tty else {}
        self._links = term.tty and os.environ.get("TERM") != "dumb"

    def text(self, file: str, line: int) -> str:
        return f"{self._names.get(file, file)}:{line}"

    def link(self, file: str, line: int, shown: str, *styles: str) -> str:
        """`shown`, which leads to the line where the terminal can follow links."""
        styled = self._term.style(shown, *styles)
        if not self._links or not Path(file).is_file():
            return styled
        return f"\x1b]8;;{Path(file).absolute().as_uri()}#{line}\x1b\\{styled}\x1b]8;;\x1b\\"


def shortest(files: Iterable[str]) -> dict[str, str]:
    """`a/router.log` and `b/router.log` keep their directories, a lone `c/decode.log` does not."""
    names: dict[str, str] = {}
    paths = {file: Path(file).parts for file in dict.fromkeys(files)}
    for file, parts in paths.items():
        others = [other for name, other in paths.items() if name != file]
        kept = 1
        while kept < len(parts) and any(other[-kept:] == parts[-kept:] for other in others):
            kept += 1
        names[file] = str(Path(*parts[-kept:])) if parts else file
    return names
