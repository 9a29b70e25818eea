"""Every line of the recorded excerpts against the stored answer: a new row that takes another's lines shows here.

Write the stored answers anew: PDCTL_SNAPSHOT=write pytest tests/engines/test_recorded.py
"""

from __future__ import annotations

import os
from pathlib import Path

from pdctl.engines.row_matching import speech
from tests.cases import for_each
from tests.engines.recorded import FILES, LOGS, lines

STORED = LOGS / "rows.txt"


def answers() -> dict[str, list[str]]:
    """File → row ids in the order of its lines, `-` for a line nobody knows."""
    stored: dict[str, list[str]] = {}
    for text in STORED.read_text(encoding="utf-8").splitlines():
        name, _, rows = text.partition(": ")
        stored[name] = rows.split()
    return stored


def spoken(path: Path) -> list[str]:
    matches = [speech().match(line) for line in lines(path)]
    return [said.row.id if said else "-" for said in matches]


@for_each("path", FILES, ids=lambda path: path.stem)
def test_every_line_is_still_the_row_it_was(path: Path) -> None:
    if os.environ.get("PDCTL_SNAPSHOT") == "write":
        everything = "".join(f"{file.name}: {' '.join(spoken(file))}\n" for file in FILES)
        STORED.write_text(everything, encoding="utf-8")
    expected = answers()[path.name]
    found = spoken(path)
    assert len(found) == len(expected)
    for at, (now, then) in enumerate(zip(found, expected, strict=True), 1):
        assert now == then, f"{path.name}:{at}"


@for_each("path", FILES, ids=lambda path: path.stem)
def test_the_literal_stands_in_the_raw_line(path: Path) -> None:
    """A search for literals in bytes, colour codes and JSON included, must find every line its row matches."""
    for line in lines(path):
        said = speech().match(line)
        assert said is None or said.row.literal in line


@for_each("path", FILES, ids=lambda path: path.stem)
def test_no_room_is_missed(path: Path) -> None:
    """A line with a room-sized number after a room word is known, and the room is read right."""
    for line in lines(path):
        if b"bootstrap_room=" not in line and b"room=" not in line and b" room " not in line:
            continue
        said = speech().match(line)
        assert said is not None, line
        room = said.values.get("room")
        if room is not None:
            assert room.encode() in line
