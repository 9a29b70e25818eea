"""An adapter: what pdctl knows of the logs of one program that takes part in PD serving, an engine or a router.

What its lines prove stands on its rows, in words of no engine (engines/sign.py); here stands what follows from which
program it is. Whoever reads logs asks these questions, and never for a program by its name. $PDCTL_ENGINES names the
modules that bring adapters of engines pdctl does not know (docs/new-engine.md).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engines.row import Row, Speaker
    from pdctl.engines.speech import Said
    from pdctl.engines.versions import Span


class Hint(NamedTuple):
    """A detail of a row's line that only some releases write: `detail` of it matches `pattern` from its start."""

    row: str
    detail: Callable[[Said], str]
    pattern: str
    span: Span


@dataclass(frozen=True, slots=True)
class Adapter:
    """`rows`: in the order in which they are tried.

    shares: the speaker whose lines it writes besides its own, because it has that one's code or took over its words.
    dated: the spans of its rows and hints are releases, so a log tells which one wrote it.
    at_info: rows of `shares` that are written at DEBUG there and at INFO here.
    names_every_room: an engine that writes a line for each request and page list of a room, so none means none came.
    command: of a router, the words that start it; () for an engine.
    pairs_at_debug: a router that names the pair of a request, and only at DEBUG.
    names_address: a router that names the bootstrap address it sends with each room, which its list may differ from.
    reads_prefill: a router that calls a request answered when it has read the prefill's whole answer, too.
    """

    speaker: Speaker
    rows: tuple[Row, ...]
    shares: Speaker | None = None
    dated: bool = False
    hints: tuple[Hint, ...] = ()
    at_info: frozenset[str] = frozenset()
    names_every_room: bool = False
    command: tuple[str, ...] = ()
    pairs_at_debug: bool = False
    names_address: bool = False
    reads_prefill: bool = False


VARIABLE = "PDCTL_ENGINES"
BRINGS = ("ADAPTER", "SURFACE")  # its logs (engines/base.py), what it serves over HTTP (engines/surface.py)


def brought(modules: str, what: str) -> tuple[object, ...]:
    """`what` of every module that has it. Raises UsageError for one that cannot be imported or brings nothing."""
    found = []
    for name in filter(None, (word.strip() for word in modules.split(","))):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            fix = f"install the package it is in, or take it out of ${VARIABLE}"
            raise UsageError(f"${VARIABLE} names {name}, which cannot be imported: {error}", fix) from None
        if not any(hasattr(module, one) for one in BRINGS):
            missing = " and no ".join(BRINGS)
            raise UsageError(f"${VARIABLE} names {name}, which has no {missing}", "see docs/new-engine.md for the form")
        if hasattr(module, what):
            found.append(getattr(module, what))
    return tuple(found)
