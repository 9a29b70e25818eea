"""One log line an engine or router writes, as a row: what must stand in it, how it reads, what it proves."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pdctl.engines.versions import Span

if TYPE_CHECKING:
    from pdctl.engines.sign import Phase, Sign


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
