"""The list of rooms is the same whether rg leaves out the lines that announce none, or we read all of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pdctl.logs import ripgrep, room_scan
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs

needs_rg = pytest.mark.skipif(ripgrep.program() is None, reason="rg is not installed (apt-get install ripgrep)")
DATA = Path(__file__).parent.parent / "data" / "rooms"
SCENARIOS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
LINE = "[2026-11-21 02:00:00 TP0] room={} is bootstrapped\n"

Told = dict[int, tuple[float, float, int, set[tuple[str, str]]]]


def told(library: Library) -> Told:
    return {
        room.room: (
            room.first,
            room.last,
            room.lines,
            {(seen.instance, row.id) for seen in room.line_kinds.seen for row in seen.rows},
        )
        for room in library.rooms()
    }


def opened(directory: Path, environ: dict[str, str]) -> Library:
    return Library(open_logs([str(directory)]), environ=environ)


def with_rg(monkeypatch: pytest.MonkeyPatch, library: Library) -> tuple[Told, list[bool]]:
    """What rg's lines tell, and whether the lines of each part were believed."""
    believed: list[bool] = []
    complete = ripgrep.MatchingLines.complete

    def recorded(lines: ripgrep.MatchingLines) -> bool:
        believed.append(complete(lines))
        return believed[-1]

    with monkeypatch.context() as patched:
        patched.setattr(room_scan, "LEAST_FOR_RG", 0)
        patched.setattr(ripgrep.MatchingLines, "complete", recorded)
        return told(library), believed


@needs_rg
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recordings_give_the_same_rooms(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, scenario: str
) -> None:
    for file in sorted((DATA / scenario).glob("*.log*")):
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        (tmp_path / file.name.removesuffix(".gz")).write_bytes(data)
    plain = told(opened(tmp_path, environ))
    found, believed = with_rg(monkeypatch, opened(tmp_path, environ))
    assert found == plain
    assert believed
    assert all(believed)


@needs_rg
def test_long_lines_and_strange_bytes_give_the_same_rooms(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 3_000_000 + " room=123456789012345678 " + "y" * 3_000_000 + " room=(223456789012345678\n"
    rooms = "".join(LINE.format(10**17 + at % 700) + f"nothing at {at}\n" for at in range(20_000))
    text = rooms + long + LINE.format("323456789012345678").replace("\n", "\r\n") + "\0room=7 \x1b[2m\n"
    (tmp_path / "p.log").write_bytes(text.encode() + b"\xff\xfe room: '8\n" + LINE.format(9).encode().rstrip())
    plain = told(opened(tmp_path, environ))
    found, believed = with_rg(monkeypatch, opened(tmp_path, environ))
    assert len(plain) >= 702
    assert found == plain
    assert believed == [True]


@needs_rg
def test_what_was_written_since_the_log_was_opened_does_not_count(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.log"
    path.write_text(LINE.format(10**17) + LINE.format(10**17 + 1))
    library = opened(tmp_path, environ)
    with path.open("a") as stream:
        stream.write(LINE.format(10**17 + 2))
    found, believed = with_rg(monkeypatch, library)
    assert sorted(found) == [10**17, 10**17 + 1]
    assert believed == [False]


@needs_rg
def test_a_log_that_was_rotated_meanwhile_is_read_under_its_new_name(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.log"
    path.write_text(LINE.format(10**17))
    library = opened(tmp_path, environ)
    path.rename(tmp_path / "p.log.1")
    path.write_text(LINE.format(10**17 + 1))
    found, believed = with_rg(monkeypatch, library)
    assert sorted(found) == [10**17]
    assert believed == [False]


@pytest.mark.parametrize(
    "script",
    ["exit 2", "kill -9 $$", "echo '[2026-11-21 02:00:00] room=5 is here'; exit 2", "exec >&-; exit 3"],
)
def test_an_rg_that_fails_is_not_believed(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "p.log").write_text(LINE.format(10**17))
    rg = tmp_path / "rg"
    rg.write_text(f"#!/bin/sh\n{script}\n")
    rg.chmod(0o755)
    monkeypatch.setattr(ripgrep, "program", lambda: str(rg))
    found, believed = with_rg(monkeypatch, opened(tmp_path / "logs", environ))
    assert sorted(found) == [10**17]
    assert believed == [False]


def test_an_rg_that_cannot_be_started_is_done_without(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.log").write_text(LINE.format(10**17))
    monkeypatch.setattr(ripgrep, "program", lambda: "/nowhere/rg")
    found, believed = with_rg(monkeypatch, opened(tmp_path, environ))
    assert sorted(found) == [10**17]
    assert believed == []
