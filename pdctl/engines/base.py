"""An adapter: what pdctl knows of the logs of one program that takes part in PD serving, an engine or a router.

What its lines prove stands on its rows, in words of no engine (engines/sign.py); here stands what follows from which
program it is. Whoever reads logs asks these questions, and never for a program by its name. $PDCTL_ENGINES names the
modules that bring adapters of engines pdctl does not know (docs/new-engine.md).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pdctl.engines.versions import Span
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engines.sign import Phase, Sign
    from pdctl.engines.speech import Said


class Speaker(str):
    """Who writes the line: the name of an adapter (engines/base.py). One object per name, so `is` may be asked."""

    __slots__ = ()
    _known: ClassVar[dict[str, Speaker]] = {}

    SGLANG: ClassVar[Speaker]
    SGLANG_ROUTER: ClassVar[Speaker]
    SMG: ClassVar[Speaker]
    MINI_LB: ClassVar[Speaker]
    PDCTL_ENGINE: ClassVar[Speaker]
    PDCTL_ROUTER: ClassVar[Speaker]
    LAUNCHER: ClassVar[Speaker]

    def __new__(cls, name: str) -> Speaker:
        return cls._known.setdefault(name, str.__new__(cls, name))

    def __reduce__(self) -> tuple[type[Speaker], tuple[str]]:
        return (Speaker, (str(self),))

    @property
    def value(self) -> str:
        return str(self)


Speaker.SGLANG = Speaker("sglang")
Speaker.SGLANG_ROUTER = Speaker("sglang-router")
Speaker.SMG = Speaker("smg")
Speaker.MINI_LB = Speaker("mini_lb")
Speaker.PDCTL_ENGINE = Speaker("pdctl-engine")
Speaker.PDCTL_ROUTER = Speaker("pdctl-router")
Speaker.LAUNCHER = Speaker("pdctl-launch")


class Level(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class Measure(NamedTuple):
    """The value that tells how long a stretch of the room's life took, what stretch, and its unit in seconds."""

    value: str
    stretch: str
    unit: float = 1.0


class Row(NamedTuple):
    """`literal` stands in every line the row matches and is searched first; `pattern` reads the rest.

    pattern: matched at the start of the message, that is after prefix and colour codes are gone. Named groups are the
    row's variables; the agreed names are room, rid, rank, reason, host, port, addr, prefill, decode, request_id,
    attempt, status, seconds, bytes, pages, speed, rank_ip, rank_port, other_room, path; a row may add its own.
    role: prefill, decode, router, or "" when both kinds of engine write it. A line with a role tells the role of the
    file it stands in (engines/identify.py).
    phase: what it proves about its room; None when it says nothing about one room.
    cause: catalogue code whose cause this line proves or suggests; "" for none.
    echo: it names an effect, never a cause.
    needs: the flag or level without which the line is not written ("--log-level debug", "--log-requests", …), "" when
    it always is.
    example: one whole real line with its prefix. It is a test.
    proves: what follows from the line besides (engines/sign.py); whoever reads logs asks for that, never for `id`.
    reached: of a line that ends a room: the step it had come to; None when that does not follow.
    measures: how long a part of the room's life took.
    follows: id of the row it continues: anywhere but behind a line of that row, or of its own, it is nobody's line.
    """

    id: str
    speaker: Speaker
    level: Level
    role: str
    literal: bytes
    pattern: str
    example: str
    span: Span = Span()
    phase: Phase | None = None
    backend: str = ""
    cause: str = ""
    echo: bool = False
    needs: str = ""
    proves: tuple[Sign, ...] = ()
    reached: Phase | None = None
    measures: Measure | None = None
    follows: str = ""


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
