"""Compressed files that grow as no log does: read up to a stated limit, and said to be so."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pdctl.logs import part
from pdctl.logs.part import examine, open_part


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
