"""What `pdctl trace-room` found out about one room. None and UNKNOWN mean the logs do not say. Nothing is guessed."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.base import Phase


class RoomOutcome(str, Enum):
    OK = "ok"
    FAILED = "failed"
    RETRIED = "retried"  # this attempt failed; the router tried the request again under another room, and answered it
    HUNG = "hung"  # still waiting when its server was stopped, or when all others had long given up
    ABORTED = "aborted"  # its client left, or gave up through the router, before anything had failed
    REFUSED = "refused"  # the request itself was answered 4xx: nothing in the deployment failed
    INCOMPLETE = "incomplete"  # the logs end before the room does, or lack lines around its own
    UNKNOWN = "unknown"


BROKEN = frozenset({RoomOutcome.FAILED, RoomOutcome.HUNG})


class RoomStep(NamedTuple):
    """One log line that belongs to the room. row: the dialect row that reads it, "" if it only names the room.

    t: seconds since the epoch on the clock of the host that wrote it, None without a time; the line was written in
    [t, t + uncertainty_s). delta_s: seconds since the room began, corrected for clock offsets; whole seconds if any
    line of the room has no finer stamp. offset: its byte in the file, the only order within one second. rid "": the
    line names none. text: the line without its prefix. echo: it names an effect, never a cause.
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


class Evidence(NamedTuple):
    """A log line and what it proves here."""

    instance: str
    file: str
    line: int
    text: str
    says: str


class Cause(NamedTuple):
    """The first thing that should have happened and did not. side: prefill, decode, router or client.

    side "": whoever sent the request, which no line tells.
    """

    code: str
    slug: str
    headline: str
    why: str
    side: str
    instance: str = ""


class WrongPrefill(NamedTuple):
    """The request went to one prefill, the decode's TransferInfo to another.

    by_elimination: no line says which prefill had the request; the contacted one is ruled out, and one is left.
    """

    requested: str
    contacted: str
    by_elimination: bool = False


class MissingEvidence(NamedTuple):
    """What no line says, and the flag that would have written the line."""

    what: str
    enable_with: str


class Lane(NamedTuple):
    """An instance involved in the room. why: how that is known."""

    instance: str
    role: str
    why: str


class Duration(NamedTuple):
    """start: seconds since the room began, None if the line gives only the length. bytes, gb_s: of a transfer.

    start_uncertainty_s: of `start`, which is on the clock of the room's lines; uncertainty_s: of `seconds`.
    """

    name: str
    instance: str
    start: float | None
    seconds: float
    uncertainty_s: float
    bytes: int | None = None
    gb_s: float | None = None
    start_uncertainty_s: float = 0.0


class LongestGap(NamedTuple):
    """The longest stretch without progress; start and end are seconds since the room began.

    after, before: the line at each end ("decode-0 Sending …"); before is "" if nothing follows. code "": not named.
    """

    start: float
    end: float
    seconds: float
    uncertainty_s: float
    after: str
    before: str
    instance: str
    code: str = ""


class ClockOffset(NamedTuple):
    """The instance's clock is `offset_s` ahead of the first lane's (None: unknown); `why` names the lines."""

    instance: str
    offset_s: float | None
    uncertainty_s: float
    why: str


HOW_IT_ENDED = "how it ended"  # what the line that shows the outcome says, as evidence


class Room(NamedTuple):
    """known: for each attribute that is not None, by its name in the JSON contract, how it is known.

    rids: instance → the request's id there. prefill_requested got the HTTP request, prefill_contacted got the decode's
    TransferInfo. began, ended: epoch seconds of its first and last line, corrected for clock offsets. echoes: lines
    that name an effect and look like a cause. consequences: what else went wrong because of `cause`. fix: one command,
    or "". warm_up: not a user's request but an engine's or a probe's own, with a fake peer.
    canary: not a user's request but doctor's or the router's own, through a real pair.
    answered_as: the room under which the router tried its request again, and answered it; None if no line says so.
    open_until: if it has begun and no line ends it, epoch seconds of the last line of the logs naming it; else None.
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
    answered_as: int | None = None


class RoomSummary(NamedTuple):
    """One line of `pdctl rooms`. seconds: first to last line; first_seen: epoch seconds, None without a time.

    at_least: no line ends it, so `seconds` runs to the last line of the logs it appears in.
    canary: known to be one; in logs too large to trace every room, only if a router's line says so.
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
