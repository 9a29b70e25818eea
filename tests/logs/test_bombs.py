"""Compressed files that grow as no log does: read up to a stated limit, and said to be so."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pdctl.logs import part
from pdctl.logs.part import examine, open_part
from pdctl.logs.source import open_logs


def read(path: Path) -> tuple[int, list[str]]:
    notes: list[str] = []
    stream = open_part(examine(str(path)), note=notes.append)
    target, total = memoryview(bytearray(1 << 16)), 0
    while got := stream.readinto(target):
        total += got
    stream.close()
    return total, notes


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_a_bomb_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(part, "SWOLLEN", 1 << 20)
    path = tmp_path / f"x.log.{form}"
    data = b"\0" * (16 << 20)
    if form == "gz":
        path.write_bytes(gzip.compress(data))
    else:
        path.write_bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))
    total, notes = read(path)
    assert total <= max(1 << 20, path.stat().st_size * part.RATIO)
    assert notes == [
        f"{path} is a bomb, or no log (more than 100 times its size): its first {total} bytes (decompressed) were read"
    ]


def test_a_log_of_one_line_over_and_over_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "SWOLLEN", 1 << 16)
    path = tmp_path / "x.log.gz"
    line = '[2026-11-22 10:{:02}:{:02}] INFO: 10.0.0.{}:{} - "GET /health HTTP/1.1" 200 OK\n'
    lines = "".join(line.format(at // 60 % 60, at % 60, at % 9, 40_000 + at % 977) for at in range(40_000))
    path.write_bytes(gzip.compress(lines.encode()))
    assert read(path) == (len(lines), [])


@pytest.mark.parametrize("form", ["sparse", "zeros", "gz"])
def test_a_file_without_a_line_is_looked_at_once_and_said_to_be_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(part, "LINELESS", 1 << 20)
    path = tmp_path / ("x.log.gz" if form == "gz" else "x.log")
    if form == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_bytes(gzip.compress(b"\0" * (4 << 20)) if form == "gz" else b"\0" * (4 << 20))
    (tmp_path / "y.log").write_text("[2026-11-22 10:00:00] one line\n")
    logs = open_logs([str(tmp_path)])
    assert [log.size > 0 for log in logs] == [False, True]
    (note,) = logs[0].notes
    assert note.startswith(f"{path} is no log: ")
    assert note.endswith(": it was not read")


def test_a_log_that_was_emptied_while_it_was_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process goes on at its old offset: in front of that is a hole."""
    monkeypatch.setattr(part, "LINELESS", 1 << 20)
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        file.seek(8 << 20)
        file.write(b"[2026-11-22 10:00:00] one line\n")
    (log,) = open_logs([str(path)])
    assert (log.size > 0, log.notes) == (True, ())
