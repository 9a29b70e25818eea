from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import pytest

from pdctl.errors import MissingExtraError
from pdctl.logs.part import LogPart, examine, open_part

TEXT = b"".join(b"[2026-11-21 02:00:00] line %d\n" % number for number in range(20_000))


def read(part: LogPart, start: int = 0, size: int = 5000) -> tuple[bytes, list[str]]:
    notes: list[str] = []
    stream = open_part(part, start, notes.append)
    target = memoryview(bytearray(size))
    out = bytearray()
    while got := stream.readinto(target):
        out += target[:got]
    stream.close()
    return bytes(out), notes


def compressed(tmp_path: Path, kind: str, text: bytes = TEXT) -> Path:
    path = tmp_path / f"d.log.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(text))
    else:
        path.write_bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(text))
    return path


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_parts_give_their_text_from_any_offset(tmp_path: Path, kind: str) -> None:
    part = examine(str(compressed(tmp_path, kind)))
    assert not part.plain
    assert read(part) == (TEXT, [])
    assert read(part, start=123_456)[0] == TEXT[123_456:]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_cut_part_gives_what_can_be_read_and_says_so(tmp_path: Path, kind: str) -> None:
    path = compressed(tmp_path, kind, os.urandom(400_000))
    whole, _ = read(examine(str(path)))
    path.write_bytes(path.read_bytes()[:-150_000])
    text, notes = read(examine(str(path)))
    assert whole.startswith(text)
    assert 0 < len(text) < len(whole)
    assert notes == [f"{path} is cut off: its first {len(text)} bytes (decompressed) were read"]


def test_a_damaged_part_ends_where_the_damage_begins(tmp_path: Path) -> None:
    path = compressed(tmp_path, "gz", os.urandom(400_000))
    data = bytearray(path.read_bytes())
    data[200_000:200_100] = bytes(100)
    path.write_bytes(data)
    text, notes = read(examine(str(path)))
    assert len(notes) == 1
    assert len(text) <= 400_000


def test_members_one_after_the_other_and_padding_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "d.gz"
    path.write_bytes(gzip.compress(b"one\n") + bytes(512) + gzip.compress(b"two\n") + bytes(7))
    assert read(examine(str(path))) == (b"one\ntwo\n", [])


def test_the_form_is_told_by_the_bytes_not_by_the_name(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(gzip.compress(b"text\n"))
    assert read(examine(str(path)))[0] == b"text\n"
    (tmp_path / "e.gz").write_bytes(b"plain\n")
    assert read(examine(str(tmp_path / "e.gz")))[0] == b"plain\n"


def test_without_zstandard_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"d\.zst is compressed with zstd") as caught:
        examine(str(tmp_path / "d.zst"))
    assert caught.value.fix == "pip install zstandard"


def test_a_part_is_read_as_long_as_it_was_and_wherever_it_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(b"before\n")
    part = examine(str(path))
    with path.open("ab") as stream:
        stream.write(b"after\n")
    path.rename(tmp_path / "d.log.1")
    path.write_bytes(b"another file\n")
    assert read(part) == (b"before\n", [])


def test_a_part_that_is_gone_ends_at_once_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(b"before\n")
    part = examine(str(path))
    path.unlink()
    text, notes = read(part)
    assert text == b""
    assert str(path) in notes[0]
