"""What `pdctl diagnose` found out about a whole deployment. What no line tells is listed as unknown, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.trace.room import Evidence, MissingEvidence


class SourceKind(str, Enum):
    """What a source is, from its own bytes."""

    ENGINE = "engine"
    ROUTER = "router"
    MIXED = "mixed"  # lines of several processes that carry no name
    FOREIGN = "foreign"  # text, and no line of it is known
    BINARY = "binary"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One process's log. role, speaker, release, level: "" where no line tells. files: as they are opened.

    lines: all of them; known: those a dialect row reads, among the `read` lines that were looked at. began, ended:
    epoch of its first and last line, None without a time. said: one sentence about what was not understood, or "".
    """

    instance: str
    kind: SourceKind
    role: str
    speaker: str
    release: str
    level: str
    files: tuple[str, ...]
    size: int
    lines: int
    read: int
    known: int
    began: float | None
    ended: float | None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Death:
    """An instance that ended without being told to. why: one sentence.

    at: when the line that proves it was written, epoch. rooms: those that failed or hung because of it.
    running: requests its last batch line counted, None without one. untold: what no log can say of its end.
    """

    instance: str
    role: str
    at: float
    code: str
    slug: str
    headline: str
    why: str
    rooms: tuple[int, ...]
    running: int | None
    evidence: tuple[Evidence, ...]
    fix: str
    untold: tuple[MissingEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentFinding:
    """A cause that is no death: of rooms that broke, or one that start lines or errors prove without a room.

    rooms: those it broke or slowed down. since, until: epoch, of the first and the last of them. grave: its code is no
    mere information.
    """

    code: str
    slug: str
    headline: str
    why: str
    instance: str
    rooms: tuple[int, ...]
    since: float | None
    until: float | None
    evidence: tuple[Evidence, ...]
    fix: str
    grave: bool = True


@dataclass(frozen=True, slots=True)
class EffectLines:
    """Lines that name an effect, or harm only now and then: no finding. count: lines of this code in the log."""

    code: str
    slug: str
    instance: str
    count: int
    first: Evidence


@dataclass(frozen=True, slots=True)
class RoomTally:
    """rooms: outcome → how many; unexplained: broken rooms no line gives a cause for. traced: broken rooms looked into.

    answered: instance → requests for tokens it answered with 200 by its access lines, without its warm-up. canaries:
    rooms that doctor left unfinished, to see that both sides let them go; none of the other numbers counts them.
    """

    rooms: Mapping[str, int]
    broken: int
    traced: int
    unexplained: tuple[int, ...]
    answered: Mapping[str, int]
    canaries: int = 0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    sources: tuple[LogSource, ...]
    deaths: tuple[Death, ...]
    findings: tuple[DeploymentFinding, ...]
    remarks: tuple[EffectLines, ...]
    tally: RoomTally
    unknowns: tuple[MissingEvidence, ...]
    notes: tuple[str, ...]
    window: tuple[float, float] | None = None  # lines outside do not count, epoch; ±inf where an end was not given
    empty: bool = False  # no line was written in it
    lost: str = ""  # that lines were not written, since when and why

    @property
    def wrong(self) -> bool:
        """A client that left, or a retry that helped, is no fault of the deployment."""
        return bool(self.deaths or self.tally.broken or any(finding.grave for finding in self.findings))

    @property
    def told(self) -> bool:
        """Whether any source is one that can be judged: it is known to be a prefill, a decode or a router.

        A router's is not enough beside logs nobody could read.
        """
        kinds = {source.kind for source in self.sources if source.kind is not SourceKind.ENGINE or source.role}
        return SourceKind.ENGINE in kinds or (SourceKind.ROUTER in kinds and not self.unread)

    @property
    def served(self) -> bool:
        """Whether a line shows that a client got its answer: nothing wrong is no proof without one.

        A prefill answers its router, and what becomes of that no line of its own tells.
        """
        prefills = {source.instance for source in self.sources if source.role == "prefill"}
        return bool(self.tally.rooms.get("ok") or set(self.tally.answered) - prefills)

    @property
    def fine(self) -> bool:
        return self.told and self.served and not self.wrong and not self.lost

    @property
    def unread(self) -> tuple[str, ...]:
        """Sources with lines of which none, or nobody's in particular, was understood."""
        kinds = (SourceKind.FOREIGN, SourceKind.BINARY, SourceKind.MIXED)
        return tuple(source.instance for source in self.sources if source.kind in kinds)
