"""What `pdctl diagnose` reports of a deployment, and what each log is. What no line says is never guessed."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.engines.versions import spell
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.trace.observed_deployment import SEPARATE, is_mixed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.engines.identify import Identity
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.observed_deployment import ObservedDeployment
    from pdctl.trace.room import ClockOffset, Evidence, MissingEvidence
    from pdctl.trace.room_events import LostLines


CONTROL = frozenset(range(32)) - {9, 10, 12, 13, 27}
JSON_START = compile_late(rb"\s*(?:\{|\[\s*(?:[\[{\"]|$))")  # `[2026-01-01 …` begins a line of plain text
SAMPLE = 1 << 15  # bytes examined to tell binary from text


class SourceKind(str, Enum):
    """What kind of source it is, judged by its own bytes."""

    ENGINE = "engine"
    ROUTER = "router"
    MIXED = "mixed"  # lines of several processes that carry no name
    FOREIGN = "foreign"  # text in which no line is known
    BINARY = "binary"
    EMPTY = "empty"


class LogSource(NamedTuple):
    """One process's log. role, speaker, release, level: "" if no line says. files: the paths to open.

    lines: number of lines; known: how many of the `read` sampled lines a dialect row reads. began, ended: epoch
    seconds of the first and last line, None without a time. said: one sentence on what was not understood, or "".
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


class Death(NamedTuple):
    """An instance that ended without being told to. why: one sentence.

    since, at: epoch seconds between which it died: its last sign of life, and the line that proves its death; equal
    where its own log or its launcher tells. rooms: those that failed or hung because of it;
    retried: how many of them the router tried again, and answered.
    running: requests counted by its last batch line and not ended by a later line, its rooms among them; None without
    such a line. untold: what no log can say about its end. back: epoch seconds of its next start, None without one;
    serves: it has answered requests since that start.
    """

    instance: str
    role: str
    since: float
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
    retried: int = 0
    back: float | None = None
    serves: bool = False


class DeploymentFinding(NamedTuple):
    """A cause other than a death: it broke rooms, or start lines or errors prove it without a room.

    rooms: those it broke or slowed down. since, until: epoch seconds of the first and the last of them.
    grave: the severity of its code is above INFO.
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


class EffectLines(NamedTuple):
    """Lines that name an effect or are usually harmless, so no finding. lines: those with this code in the log."""

    code: str
    slug: str
    instance: str
    lines: int
    first: Evidence


class RoomTally(NamedTuple):
    """rooms: outcome → count; unexplained: broken rooms with no known cause; traced: number of broken rooms traced.

    answered: instance → generation requests that its access lines show as answered 200, without its warm-up.
    canaries: rooms doctor left unfinished to check that both sides release them; no other number includes them.
    """

    rooms: Mapping[str, int]
    broken: int
    traced: int
    unexplained: tuple[int, ...]
    answered: Mapping[str, int]
    canaries: int = 0


class Diagnosis(NamedTuple):
    sources: tuple[LogSource, ...]
    deaths: tuple[Death, ...]
    findings: tuple[DeploymentFinding, ...]
    remarks: tuple[EffectLines, ...]
    tally: RoomTally
    unknowns: tuple[MissingEvidence, ...]
    notes: tuple[str, ...]
    window: tuple[float, float] | None = None  # epoch seconds; lines outside do not count; ±inf: no limit
    empty: bool = False  # no line was written in the window
    lost: str = ""  # the supervisor's word that lines are being lost, since when and why; "" if it says nothing
    lost_lines: tuple[LostLines, ...] = ()
    ended: str = ""  # what no log tells of the run's end: that the supervisor died, or its death where lines were lost
    contradiction: str = ""  # why these cannot be the logs of one deployment; "" if they can
    clocks: tuple[ClockOffset, ...] = ()  # of instances whose clock differs from the others', as lines of rooms show

    @property
    def wrong(self) -> bool:
        """Whether the deployment is at fault; a client that left or a retry that helped does not count."""
        return bool(self.ended or self.deaths or self.tally.broken or any(finding.grave for finding in self.findings))

    @property
    def told(self) -> bool:
        """Whether any source can be judged, that is, is known to be a prefill, a decode or a router.

        A router's log alone is not enough if other logs could not be read.
        """
        kinds = {source.kind for source in self.sources if source.kind is not SourceKind.ENGINE or source.role}
        return SourceKind.ENGINE in kinds or (SourceKind.ROUTER in kinds and not self.unread)

    @property
    def served(self) -> bool:
        """Whether a line shows that a client got its answer; without one, the absence of errors proves nothing.

        A prefill answers its router; its own lines do not say what happens to that answer. Nor does a decode's 200,
        which begins a stream, where rooms are named and none of them is known to have ended.
        """
        prefills = {source.instance for source in self.sources if source.role == "prefill"}
        rooms = self.tally.rooms
        return bool(rooms.get("ok") or (set(self.tally.answered) - prefills and not rooms.get("incomplete")))

    @property
    def fine(self) -> bool:
        untold = self.wrong or self.lost or self.lost_lines or self.contradiction
        return self.told and self.served and not untold

    @property
    def unread(self) -> tuple[str, ...]:
        """Sources whose lines could not be understood, or not assigned to one process."""
        kinds = (SourceKind.FOREIGN, SourceKind.BINARY, SourceKind.MIXED)
        return tuple(source.instance for source in self.sources if source.kind in kinds)


class JudgedDeployment(NamedTuple):
    """A deployment of those whose logs were given together. directory: of its logs; "" if it is the only one."""

    directory: str
    diagnosis: Diagnosis


def read_sources(library: Library, deployment: ObservedDeployment) -> tuple[LogSource, ...]:
    return tuple(_source(library, deployment, log) for log in library.logs)


def _source(library: Library, deployment: ObservedDeployment, log: Log) -> LogSource:
    found = kind_of(library, log)
    identity, lines = library.identity(log), found.lines
    one = deployment.instances.get(log.instance)
    began = [instant.t for line in lines[:200] if (instant := library.instant(log, line)) is not None]
    return LogSource(
        log.instance, found.kind, identity.role, identity.speaker.value if identity.speaker else "", release(identity),
        identity.level.value if identity.level else "", log.files, log.size,
        library.lines(log), len(lines), found.known, min(began, default=None), one.last if one else None, found.said,
    )  # fmt: skip


class FoundKind(NamedTuple):
    """lines: the non-blank lines of a sample; known: how many of them a dialect row reads.

    said: one sentence on what was not understood, or "".
    """

    kind: SourceKind
    lines: tuple[bytes, ...]
    known: int
    said: str


def kind_of(library: Library, log: Log) -> FoundKind:
    sample = library.sample(log)
    lines = tuple(line for line in (*sample.head, *sample.rest) if line.strip())
    known = sum(library.speech.match(line) is not None for line in lines)
    kind = _kind(log, sample.identity, lines, known)
    # Lines are counted only if the sentence needs their number, because counting reads the whole log.
    looked_at = min(len(lines), library.lines(log)) if kind is SourceKind.FOREIGN else len(lines)
    if kind is SourceKind.EMPTY and log.notes and not log.size:
        return FoundKind(kind, lines, known, "it was not read (see the note)")
    return FoundKind(kind, lines, known, _describe_kind(kind, sample.identity, lines, known, looked_at, log.size))


def _kind(log: Log, identity: Identity, lines: Sequence[bytes], known: int) -> SourceKind:
    if not lines:
        return SourceKind.EMPTY
    if is_binary(lines):
        return SourceKind.BINARY
    if is_mixed(log, identity):
        return SourceKind.MIXED
    if identity.speaker is None and not known:
        return SourceKind.FOREIGN
    return SourceKind.ROUTER if identity.role == "router" else SourceKind.ENGINE


def is_binary(lines: Sequence[bytes]) -> bool:
    """Whether more than one byte in fifty is a control character or not UTF-8, as in no log."""
    data = b"\n".join(lines)[:SAMPLE]
    odd = sum(data.count(bytes([each])) for each in CONTROL)
    broken = data.decode("utf-8", "replace").count("\N{REPLACEMENT CHARACTER}")
    return (odd + broken) * 50 > len(data)


def release(identity: Identity) -> str:
    """The release range in words, such as `0.5.8 or later, before 0.5.12`; "" if unknown."""
    since, until = identity.since, identity.until
    if since is not None and until is not None:
        return f"{spell(since)} or later, before {spell(until)}"
    if since is not None:
        return f"{spell(since)} or later"
    return f"before {spell(until)}" if until is not None else ""


def _describe_kind(
    kind: SourceKind, identity: Identity, lines: Sequence[bytes], known: int, looked_at: int, size: int
) -> str:
    if kind is SourceKind.EMPTY and size:
        return f"no line of text in its {size} bytes: it is no log"
    if kind is SourceKind.EMPTY:
        return "no line in it: its process wrote nothing here, or its output goes elsewhere"
    if kind is SourceKind.BINARY:
        return "no text: these are binary bytes; give the log itself (unpacked, as UTF-8)"
    if kind is SourceKind.FOREIGN and JSON_START.match(lines[0]):
        return (
            "JSON in which no line of SGLang, a router or pdctl was found: give one record a line, with the text under "
            "log, message or line and the pod or unit beside it (logcli -o jsonl, jq -c '.[]')"
        )
    if kind is SourceKind.FOREIGN:
        return (
            f"no line of the {looked_at} looked at is SGLang's, a router's or pdctl's: it is another program's log, or "
            "one whose format pdctl does not read (`pdctl dialect check` shows its lines)"
        )
    if kind is SourceKind.MIXED:
        return (
            "lines of several processes that alternate, and none names its own: which of them failed, and which pair a "
            f"room had, cannot be told; {SEPARATE}"
        )
    if identity.role == "" and known:
        return "no line tells whether it is a prefill or a decode: give its log from the start"
    return ""
