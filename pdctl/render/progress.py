"""How the start of a run is shown: not at all, one line per transition, or in place where the terminal has room."""

from __future__ import annotations

import os
import shutil
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.render.live import PlainView, View

if TYPE_CHECKING:
    from pdctl.launch.deployment import Deployment
    from pdctl.render.term import Term

# Lines and columns that the live view needs beside one row and one name per process.
BESIDE_ROWS, BESIDE_NAME = 3, 66


class Progress(str, Enum):
    AUTO = "auto"
    TTY = "tty"
    PLAIN = "plain"
    NONE = "none"


def choose(progress: Progress, deployment: Deployment, term: Term, attached: bool) -> View:
    """The view that fits the stream: in-place redraw needs a terminal with room for every row and column."""
    if progress is Progress.NONE:
        return View()
    plain = PlainView(deployment, term, attached)
    size = shutil.get_terminal_size()
    room = size.lines > len(deployment.specs) + BESIDE_ROWS and size.columns >= plain.prefix.width + BESIDE_NAME
    fits = room and term.tty and os.environ.get("TERM") != "dumb"
    if progress is Progress.PLAIN or (progress is Progress.AUTO and not fits):
        return plain
    from pdctl.render.board import TerminalView  # late: rich's live display, which few terminals need

    return TerminalView(deployment, term, attached)
