"""How all views of a room express seconds, sizes, speeds, outcomes and file:line, safe for a terminal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import elided, visible
from pdctl.trace.room import HOW_IT_ENDED, RoomOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.render.term import Term
    from pdctl.trace.deployment_report import Diagnosis
    from pdctl.trace.room import ClockOffset, Duration, Room, WrongPrefill


COARSE = 0.5  # seconds; for a clock this coarse or coarser the ± is shown
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def offset(seconds: float | None) -> str:
    """Time since the room began: `+20s`, `+0.012s`; `?` for a line without a time."""
    return "?" if seconds is None else f"{seconds:+.{_digits(seconds)}f}s"


def doubt(uncertainty: float) -> str:
    """`±1s`, or nothing for a clock with milliseconds."""
    return f"±{uncertainty:g}s" if uncertainty >= COARSE else ""


def exact(seconds: float | None, uncertainty: float) -> str:
    """An offset as exact as its clock: whole seconds if the clock shows no more."""
    if seconds is not None and uncertainty >= COARSE:
        return f"{round(seconds):+d}s"
    return offset(seconds)


def began(each: Duration) -> str:
    """Where a duration begins, on the clock of the room's lines, rounded down as that clock's stamps are."""
    if each.start is None:
        return ""
    doubted = max(each.start_uncertainty_s, each.uncertainty_s)
    if doubted < COARSE:
        return offset(each.start)
    return f"{floor(each.start):+d}s {doubt(doubted)}"


def took(seconds: float, uncertainty: float = 0.0) -> str:
    """A duration: `300 s`, `0.84 s`, `12 ms`; whole seconds for a coarse clock."""
    if uncertainty >= COARSE:
        return f"{round(seconds)} s"
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def size(count: int) -> str:
    for unit, name in BYTES:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def speed(gb_s: float) -> str:
    return f"{gb_s:.3g} GB/s"


def moment(epoch: float, zone: dt.tzinfo | None, uncertainty: float = 1.0) -> dt.datetime:
    """The time in `zone`, or in this machine's zone; whole seconds if the log's clock shows no more."""
    local = dt.datetime.fromtimestamp(epoch, zone) if zone else dt.datetime.fromtimestamp(epoch).astimezone()
    return local if uncertainty < COARSE else local.replace(microsecond=0)


def window(span: tuple[float, float], zone: dt.tzinfo | None) -> str:
    """`from 2026-11-21 01:34:20 to 01:36:00`, `since …`, `until …`; an infinite end means it was not given."""
    since, until = (None if abs(each) == float("inf") else moment(each, zone, 1.0) for each in span)
    if since is None or until is None:
        one = since or until
        return f"{'since' if until is None else 'until'} {one:%Y-%m-%d %H:%M:%S}" if one is not None else ""
    same = since.date() == until.date()
    return f"from {since:%Y-%m-%d %H:%M:%S} to {until:{'%H:%M:%S' if same else '%Y-%m-%d %H:%M:%S'}}"


@lru_cache(maxsize=4096)
def rfc3339(epoch: float) -> str:
    """The time in RFC 3339: UTC, to the millisecond."""
    if epoch % 1 == 0:  # most logs' clocks are no finer, and a list has a time for every room
        minute, second = divmod(int(epoch), 60)
        return f"{_minute(minute)}:{second:02d}.000Z"
    return dt.datetime.fromtimestamp(epoch, dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=4096)
def _minute(minute: int) -> str:
    return dt.datetime.fromtimestamp(minute * 60, dt.timezone.utc).isoformat(timespec="minutes").removesuffix("+00:00")


def _digits(seconds: float) -> int:
    return 3 if abs(seconds) < 10 else 2 if abs(seconds) < 100 else 1


MOST_SAID = 240  # characters of a line quoted in a headline


def describe_clock(clock: ClockOffset, term: Term) -> str:
    """By how much the instance's clock is ahead, and which lines show it."""
    sign = term.symbol("±", "+-")
    return f"{clock.instance} {clock.offset_s or 0.0:+.3f} s {sign}{clock.uncertainty_s:g} s ({clock.why})"


class OutcomeMark(NamedTuple):
    """plain: replaces `symbol` on an ASCII-only terminal. said: the text if there is no cause."""

    symbol: str
    plain: str
    style: str
    said: str


MARKS = {
    "ok": OutcomeMark("✓", "+", "green", "the KV pages arrived and the decode finished"),
    "failed": OutcomeMark("✗", "x", "red", "no known cause"),
    "hung": OutcomeMark("✗", "x", "red", "no known cause"),
    "retried": OutcomeMark("-", "-", "yellow", "the router tried its request again, and answered it"),
    "aborted": OutcomeMark("-", "-", "yellow", "the client left: nothing of the deployment failed"),
    "refused": OutcomeMark("-", "-", "yellow", "the request itself was refused: nothing of the deployment failed"),
    "incomplete": OutcomeMark("!", "!", "yellow", "the logs end before the room does"),
    "unknown": OutcomeMark("?", "?", "yellow", "the logs do not tell how the room ended"),
}


def describe_without_cause(room: Room) -> str:
    """What to say of a room without a cause: of one that failed, the line in which one side gave it up."""
    said = MARKS[room.outcome.value].said
    ending = next((line for line in room.evidence if line.says == HOW_IT_ENDED), None)
    if room.outcome is not RoomOutcome.FAILED or ending is None:
        return said
    return f"{said}; {ending.instance} gave it up with: {elided(ending.text.strip(), MOST_SAID)}"


# Said of the prefill that the decode contacted if the request went to another one.
STRAY = "has TransferInfo, never got the request"


def describe_wrong_prefill(wrong: WrongPrefill) -> str:
    """What to say about the prefill that had the request."""
    return f"has the request{' by elimination' if wrong.by_elimination else ''}, waits for TransferInfo"


class Places:
    """Names files. files: all that will be named; on a terminal each is shown by its shortest unique tail."""

    def __init__(self, files: Iterable[str], term: Term) -> None:
        self._term = term
        self._names = shortest(files) if term.tty else {}
        self._links = term.moves

    def text(self, file: str, line: int) -> str:
        return f"{self._names.get(file, file)}:{line}"

    def link(self, file: str, line: int, shown: str, *styles: str) -> str:
        """`shown`, as a link to the line if the terminal supports links."""
        styled = self._term.style(shown, *styles)
        if not self._links or not Path(file).is_file():
            return styled
        return f"\x1b]8;;{Path(file).absolute().as_uri()}#{line}\x1b\\{styled}\x1b]8;;\x1b\\"


def shortest(files: Iterable[str]) -> dict[str, str]:
    """Path → shortest unique tail: `a/router.log` beside `b/router.log` keeps its directory, a lone name does not."""
    names: dict[str, str] = {}
    paths = {file: Path(file).parts for file in dict.fromkeys(files)}
    for file, parts in paths.items():
        others = [other for name, other in paths.items() if name != file]
        kept = 1
        while kept < len(parts) and any(other[-kept:] == parts[-kept:] for other in others):
            kept += 1
        names[file] = str(Path(*parts[-kept:])) if parts else file
    return names


Told = TypeVar("Told", "Room", "Diagnosis")


def escape_all(room: Told, term: Term | None = None) -> Told:
    """A copy with all text passed through `visible`. term: the stream it is for; None can encode everything."""
    shown = _shown(room, term)
    assert isinstance(shown, type(room))
    return shown


def _shown(value: object, term: Term | None) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else visible(value, term)
    if isinstance(value, tuple):
        shown = [_shown(each, term) for each in value]
        return value._make(shown) if hasattr(value, "_make") else tuple(shown)
    if isinstance(value, Mapping):
        return {_shown(key, term): _shown(each, term) for key, each in value.items()}
    return value
