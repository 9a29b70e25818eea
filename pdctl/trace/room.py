"""What `pdctl trace-room` found out about one room. None and UNKNOWN mean: the logs do not say. Nothing is a guess."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.sign import Phase


class RoomOutcome(str, Enum):
    OK = "ok"
    FAILED = "failed"
    HUNG = "hung"  # still waiting when its server was stopped, or when everybody had long given up
    ABORTED = "aborted"  # its client left, or gave up through the router, before anything had failed
    REFUSED = "refused"  # the request itself was answered 4xx: nothing of the deployment failed
    INCOMPLETE = "incomplete"  # the logs end before the room does
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RoomStep:
    """One log line that belongs to the room. `row`: the dialect row it speaks, "" for a line that only names the room.

    t: seconds since the epoch on the clock of the host that wrote it, None without a time; the line was written in
    [t, t + uncertainty_s). delta_s: t since the room began, clock offsets taken out; in whole seconds where one line of
    the room has no more. `offset` is the byte in its file:
    the only order within one second. rid "": the line names none. text: the line without its prefix.
    echo: it names an effect, never a cause.
    """

    instance: str
    role: str  # router, prefill, decode, or "" when the log does not say
    rank: str
    phase: Phase | None
    t: float | None
    delta_s: float | None
    uncertainty_s: float
    file: str
    line: int
    offset: int
    text: str
    row: str = ""
    rid: str = ""
    echo: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line, and what it proves here."""

    instance: str
    file: str
    line: int
    text: str
    says: str


@dataclass(frozen=True, slots=True)
class Cause:
    """The first thing that should have happened and did not. side: prefill, decode, router or client."""

    code: str
    slug: str
    headline: str
    why: str
    side: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class WrongPrefill:
    """The request went to one prefill, the decode's TransferInfo to another.

    by_elimination: no line says who had the request; the one that was contacted is ruled out, and one is left.
    """

    requested: str
    contacted: str
    by_elimination: bool = False


@dataclass(frozen=True, slots=True)
class MissingEvidence:
    """What no line says, and the flag that would have written the line."""

    what: str
    enable_with: str


@dataclass(frozen=True, slots=True)
class Lane:
    """An instance the room met. `why`: how it is known to have."""

    instance: str
    role: str
    why: str


@dataclass(frozen=True, slots=True)
class Duration:
    """`start`: seconds since the room began, None when a line tells only the length. bytes, gb_s: of a transfer.

    start_uncertainty_s: of `start`, which stands on the clock of the room's lines; uncertainty_s: of `seconds`.
    """

    name: str
    instance: str
    start: float | None
    seconds: float
    uncertainty_s: float
    bytes: int | None = None
    gb_s: float | None = None
    start_uncertainty_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LongestGap:
    """The longest stretch without progress; start and end are seconds since the room began.

    after, before: what stands at either end ("decode-0 Sending …"), before "" when nothing follows. code "": not named.
    """

    start: float
    end: float
    seconds: float
    uncertainty_s: float
    after: str
    before: str
    instance: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """`instance`'s clock is `offset_s` ahead of the first lane's (None: nothing tells); `why` names the lines."""

    instance: str
    offset_s: float | None
    uncertainty_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Room:
    """`known` says of each attribute that is not None how it is known, by its name in the JSON contract.

    rids: instance → the request's id there. prefill_requested got the HTTP request, prefill_contacted got decode's
    TransferInfo. began, ended: epoch of its first and last line, clock offsets taken out. echoes: lines that name an
    effect and pass for a cause. consequences: what else went wrong because of `cause`. fix: one command, or "".
    warm_up: no user's request, but an engine's or a probe's own, with a peer that is not there.
    canary: no user's request, but doctor's or the router's own, through a real pair.
    open_until: epoch of the last line of the logs it appears in, where it has begun and no line ends it; else None.
    """

    room: int
    rids: Mapping[str, str]
    outcome: RoomOutcome
    prefill_requested: str | None
    prefill_contacted: str | None
    decode: str | None
    phase_reached: Phase | None
    cause: Cause | None
    events: tuple[RoomStep, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    missing_evidence: tuple[MissingEvidence, ...] = ()
    fix: str = ""
    began: float | None = None
    ended: float | None = None
    lanes: tuple[Lane, ...] = ()
    durations: tuple[Duration, ...] = ()
    gap: LongestGap | None = None
    clocks: tuple[ClockOffset, ...] = ()
    wrong_prefill: WrongPrefill | None = None
    consequences: tuple[str, ...] = ()
    echoes: tuple[Evidence, ...] = ()
    known: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    warm_up: bool = False
    canary: bool = False
    open_until: float | None = None


@dataclass(frozen=True, slots=True)
class RoomSummary:
    """One line of `pdctl rooms`. `seconds`: first to last line of the room; first_seen: epoch, None without a time.

    at_least: no line ends it, so `seconds` goes to the last line of the logs it appears in.
    canary: known to be one; in logs too large to trace every room only where a router's line says so.
    """

    room: int
    prefill: str | None
    decode: str | None
    phase_reached: Phase | None
    seconds: float | None
    outcome: RoomOutcome
    code: str
    first_seen: float | None
    lines: int = 0
    canary: bool = False
    at_least: bool = False
