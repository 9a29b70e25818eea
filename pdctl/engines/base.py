"""An adapter: what pdctl knows about the logs of one program that takes part in PD serving, an engine or a router.

What its lines prove is stated on its rows, in engine-neutral terms (engines/sign.py); the adapter states what follows
from which program it is. Code that reads logs asks for these properties and never for a program by its name.
$PDCTL_ENGINES names modules with adapters for engines that pdctl does not know (docs/new-engine.md).
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
    """Who writes a line: the name of an adapter (engines/base.py). One object per name, so `is` works."""

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
    """A value that says how long one stretch of a room's life took: its name, the stretch, and its unit in seconds."""

    value: str
    stretch: str
    unit: float = 1.0


class Row(NamedTuple):
    """One kind of log line. `literal` is in every line the row matches and is searched first; `pattern` reads the rest.

    pattern: matched at the start of the message, that is, after prefix and colour codes are removed. Named groups are
    the row's variables; the agreed names are room, rid, rank, reason, host, port, addr, prefill, decode, request_id,
    attempt, status, seconds, bytes, pages, speed, rank_ip, rank_port, other_room, path; a row may add its own.
    role: prefill, decode, router, or "" if both kinds of engine write it. A line with a role tells the role of the
    file it is in (engines/identify.py).
    phase: what it proves about its room; None if it says nothing about one room.
    cause: the catalogue code whose cause this line proves or suggests; "" for none.
    echo: it names an effect, never a cause.
    needs: the flag or level without which the line is not written ("--log-level debug", "--log-requests", …), "" if
    it is always written.
    example: one whole real line with its prefix. It is a test.
    proves: what else follows from the line (engines/sign.py); code that reads logs asks for this, never for `id`.
    reached: for a line that ends a room, the step the room had reached; None if that does not follow.
    measures: how long a part of the room's life took.
    follows: the id of the row it continues; it matches only after a line of that row, or of this one.
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
    """A detail of a row's line that only some releases write: `pattern` matches the start of what `detail` returns."""

    row: str
    detail: Callable[[Said], str]
    pattern: str
    span: Span


@dataclass(frozen=True, slots=True)
class Adapter:
    """`rows`: in the order in which they are tried.

    shares: the speaker whose lines it also writes, because it contains that one's code or copies its messages.
    dated: the spans of its rows and hints are releases, so a log shows which release wrote it.
    at_info: rows of `shares` that are at DEBUG there and at INFO here.
    names_every_room: an engine that writes a line for each request and page list of a room, so no line means neither
    arrived.
    command: for a router, the words that start it; () for an engine.
    pairs_at_debug: a router that names the pair of a request only at DEBUG.
    names_address: a router that names the bootstrap address it sends with each room, which may differ from its list.
    reads_prefill: a router that reports a request as answered only once it has read the prefill's whole answer too.
    writes_utc: a router whose lines carry UTC without saying so, whatever its host's zone.
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
    writes_utc: bool = False


VARIABLE = "PDCTL_ENGINES"
BRINGS = ("ADAPTER", "SURFACE")  # an engine's logs (engines/base.py), and what it serves over HTTP (engines/surface.py)


def brought(modules: str, what: str) -> tuple[object, ...]:
    """`what` of every module that has it. Raise UsageError if one cannot be imported or brings nothing."""
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
