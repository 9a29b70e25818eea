"""The list of rooms: a table that fits the terminal, tab-separated values in a pipe, JSON."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import GAP, NARROWEST, cells, fitted, padded, visible
from pdctl.render.trace import wording
from pdctl.render.trace.room_json import ascii_json, dumped
from pdctl.render.trace.steps import HUES
from pdctl.render.trace.wording import MARKS

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import RoomSummary

SCHEMA = "pdctl.rooms/1"
CANARY = "canary"  # sent by doctor or the router, not by a user
OPEN = "no end"  # no line ends it


class Column(NamedTuple):
    """drop: a narrow terminal omits columns with larger values first; 0 is never omitted. cut: may be elided."""

    title: str
    drop: int = 0
    cut: bool = False
    right: bool = False


COLUMNS = (
    Column("ROOM", right=True),
    Column("STARTED", 3),
    Column("PREFILL", cut=True),
    Column("DECODE", cut=True),
    Column("PHASE", 4),
    Column("TOOK", 1, right=True),
    Column("OUTCOME"),
    Column("CAUSE", 2),
    Column("NOTE", 5),
)


def show(found: Sequence[RoomSummary], term: Term, zone: dt.tzinfo | None) -> None:
    if not term.tty:
        term.write(to_tsv(found, term))
        return
    days = {wording.moment(each.first_seen, zone).date() for each in found if each.first_seen is not None}
    rows = [_row(each, zone, len(days) > 1, term.symbol("≥ ", ">=")) for each in found]
    shown = [[visible(cell, term) for cell in row] for row in rows]
    widths = _widths(shown, term.width)
    head = [column.title for column in COLUMNS]
    term.write(_line(term, head, widths, [("bold",)] * len(head)))
    for each, row in zip(found, shown, strict=True):
        term.write(_line(term, row, widths, _styles(each)))


def totals(found: Sequence[RoomSummary], of: int) -> str:
    """`12 rooms: 9 ok, 2 failed, 1 unknown`."""
    count = Counter(each.outcome.value for each in found)
    parts = ", ".join(f"{count[outcome]} {outcome}" for outcome in MARKS if count[outcome])
    number = f"{len(found)} of {of} rooms" if len(found) < of else f"{of} room{'' if of == 1 else 's'}"
    return f"{number}: {parts}" if parts else number


def to_tsv(found: Sequence[RoomSummary], term: Term) -> str:
    """Tab-separated values with a header; times in UTC, durations in seconds, empty fields for unknown values."""
    head = ("room", "started", "prefill", "decode", "phase", "seconds", "outcome", "cause", "note")
    shown = lru_cache(maxsize=None)(partial(visible, term=term))  # a million rooms share few instances
    return "\n".join("\t".join(row) for row in (head, *(_fields(each, shown) for each in found)))


def to_json(found: Sequence[RoomSummary], term: Term, notes: Sequence[str] = ()) -> str:
    shown = [visible(note, None) for note in notes]
    text = dumped({"schema": SCHEMA, "rooms": [document(each) for each in found], "notes": shown}, indent=2)
    return text if term.unicode else ascii_json(text)


def to_jsonl(found: Sequence[RoomSummary], term: Term) -> str:
    text = "\n".join(dumped(document(each)) for each in found)
    return text if term.unicode else ascii_json(text)


def document(room: RoomSummary) -> dict[str, object]:
    return {
        "room": room.room,
        "room_id": str(room.room),  # jq 1.6 and JavaScript round numbers above 2^53
        "hex": f"0x{room.room:x}",
        "started": room.first_seen,
        "time": None if room.first_seen is None else wording.rfc3339(room.first_seen),
        "prefill": room.prefill,
        "decode": room.decode,
        "phase_reached": room.phase_reached.value if room.phase_reached else None,
        "seconds": room.seconds,
        "outcome": room.outcome.value,
        "cause": room.code or None,
        "lines": room.lines,
        "canary": room.canary,
        "at_least": room.at_least,
    }


def _fields(room: RoomSummary, shown: Callable[[str], str]) -> tuple[str, ...]:
    return (
        str(room.room),
        "" if room.first_seen is None else wording.rfc3339(room.first_seen),
        shown(room.prefill or ""),
        shown(room.decode or ""),
        room.phase_reached.value if room.phase_reached else "",
        "" if room.seconds is None else f"{round(room.seconds, 6):g}",
        room.outcome.value,
        room.code,
        _note(room),
    )


def _row(room: RoomSummary, zone: dt.tzinfo | None, dated: bool, at_least: str) -> list[str]:
    began = None if room.first_seen is None else wording.moment(room.first_seen, zone)
    return [
        str(room.room),
        began.strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S") if began else "-",
        room.prefill or "-",
        room.decode or "-",
        room.phase_reached.value.replace("_", " ") if room.phase_reached else "-",
        (at_least if room.at_least else "") + _took(room.seconds),
        room.outcome.value,
        room.code or "-",
        _note(room),
    ]


def _note(room: RoomSummary) -> str:
    return ", ".join([CANARY] * room.canary + [OPEN] * room.at_least)


def _took(seconds: float | None) -> str:
    """The duration in words; whole seconds if the logs' clocks are no finer."""
    if seconds is None:
        return "-"
    if seconds == int(seconds):
        return f"{seconds:.0f} s" if seconds else "<1 s"
    return wording.took(seconds)


def _styles(room: RoomSummary) -> list[tuple[str, ...]]:
    colour = MARKS[room.outcome.value].style
    styles = {"PREFILL": (HUES["prefill"],), "DECODE": (HUES["decode"],), "OUTCOME": (colour,), "CAUSE": (colour,)}
    return [styles.get(column.title, ()) for column in COLUMNS]


def _widths(rows: Sequence[Sequence[str]], limit: int) -> list[int]:
    """Column widths; an omitted column has width 0. Names are elided first, down to NARROWEST."""
    widths = [max([len(column.title), *(cells(row[at]) for row in rows)]) for at, column in enumerate(COLUMNS)]
    if not any(row[-1] for row in rows):  # most lists have no notes
        widths[-1] = 0
    while _total(widths) > limit:
        names = [at for at, column in enumerate(COLUMNS) if column.cut and widths[at] > NARROWEST]
        if names:
            widths[max(names, key=lambda at: widths[at])] -= 1
            continue
        at = max(range(len(COLUMNS)), key=lambda at: COLUMNS[at].drop if widths[at] else -1)
        if not COLUMNS[at].drop:
            break
        widths[at] = 0
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (sum(1 for width in widths if width) - 1)


def _line(term: Term, row: Sequence[str], widths: Sequence[int], styles: Sequence[tuple[str, ...]]) -> str:
    parts = []
    for column, cell, width, style in zip(COLUMNS, row, widths, styles, strict=True):
        if width:
            text = fitted(cell, width)
            space = " " * (width - cells(text))
            parts.append(space + term.style(text, *style) if column.right else term.style(padded(text, width), *style))
    return GAP.join(parts).rstrip()
