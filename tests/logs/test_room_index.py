from __future__ import annotations

import gzip
import multiprocessing
import random
from pathlib import Path

import pytest

from pdctl.logs import room_index
from pdctl.logs.part import LogPart, examine
from pdctl.logs.room_index import RoomIndex, long_numbers
from pdctl.logs.scan import ScanJob, room_terms, scan

FIRST, LAST, TWICE = 2148025886387619708, 9_007_199_254_740_991, 18_446_744_073_709_551_615


def text_of(seed: int, lines: int) -> bytes:
    """Rooms of 15 to 20 digits among other numbers; FIRST in the first line, LAST in the last, TWICE far apart."""
    chance = random.Random(seed)
    out = [b"room=%d first\n" % FIRST]
    out += [
        b"[2026-11-21 02:00:%02d] room=%d #token: %d, usage: 0.%d\n"
        % (at % 60, chance.randrange(10**14, 2**64), at, chance.randrange(10**12))
        for at in range(lines)
    ]
    out[1] = out[lines - 1] = b"twice %d\n" % TWICE
    return b"".join(out) + b"room=%d last\n" % LAST


def found(tables: RoomIndex, part: LogPart, room: int) -> list[tuple[int, bytes]]:
    looked = tables.where(part, room)
    assert looked is not None
    jobs = [ScanJob(span, room_terms(room)) for span in looked.spans]
    return [(hit.offset, hit.text) for each in scan(jobs) for hit in each.hits]


@pytest.fixture(params=["plain", "gzip"])
def part(request: pytest.FixtureRequest, tmp_path: Path) -> LogPart:
    data = text_of(1, 30_000)
    path = tmp_path / "d.log"
    path.write_bytes(gzip.compress(data, 1) if request.param == "gzip" else data)
    return examine(str(path))


def test_rooms_are_found_where_they_stand(part: LogPart, environ: dict[str, str]) -> None:
    data = text_of(1, 30_000)
    tables = RoomIndex(environ, True)
    assert tables.where(part, FIRST) is None  # not built
    assert tables.build(part)
    assert found(tables, part, FIRST) == [(0, b"room=%d first" % FIRST)]
    assert found(tables, part, LAST) == [(data.index(b"room=%d" % LAST), b"room=%d last" % LAST)]
    assert [text for _, text in found(tables, part, TWICE)] == [b"twice %d" % TWICE] * 2
    assert found(tables, part, 10**15 + 7) == []
    looked = tables.where(part, LAST)
    assert looked is not None
    if part.plain:
        assert sum(span.end - span.start for span in looked.spans) < part.size / 3
        offset, line = looked.lines[-1]
        assert data.count(b"\n", 0, offset) + 1 == line


def test_short_rooms_are_not_in_it(part: LogPart, environ: dict[str, str]) -> None:
    tables = RoomIndex(environ, True)
    assert tables.build(part)
    assert tables.where(part, 10**14 - 1) is None


def test_growth_is_appended_and_a_partial_line_left_for_later(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(text_of(2, 3000) + b"room=21480258")
    tables = RoomIndex(environ, True)
    assert tables.build(examine(str(path)))
    (file,) = (tmp_path / "cache").rglob("*.rooms")
    before = file.read_bytes()
    with path.open("ab") as stream:
        stream.write(b"86387619000 done\n")
    assert tables.build(examine(str(path)))
    assert found(tables, examine(str(path)), 2148025886387619000) == [
        (len(text_of(2, 3000)), b"room=2148025886387619000 done")
    ]
    after = file.read_bytes()
    assert after[96 : len(before)] == before[96:]
    assert 0 < len(after) - len(before) < 100


@pytest.mark.parametrize("damage", [0, 40, 75])
def test_a_damaged_table_is_none_and_is_built_anew(tmp_path: Path, environ: dict[str, str], damage: int) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(text_of(3, 1000))
    tables, part = RoomIndex(environ, True), examine(str(path))
    assert tables.build(part)
    (file,) = (tmp_path / "cache").rglob("*.rooms")
    data = bytearray(file.read_bytes())
    data[damage] ^= 255
    file.write_bytes(data)
    assert tables.where(part, FIRST) is None
    assert tables.build(part)
    assert len(found(tables, part, FIRST)) == 1


def test_a_damaged_compressed_part_gets_no_table(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "d.gz"
    path.write_bytes(gzip.compress(text_of(4, 3000))[:-100])
    assert not RoomIndex(environ, True).build(examine(str(path)))
    assert not list((tmp_path / "cache").rglob("*.rooms"))


def test_an_endless_line_is_in_it(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(b"a\nroom=%d %b room=%d\nb %d\n" % (FIRST, b"x" * 3_000_000, LAST, TWICE))
    tables, part = RoomIndex(environ, True), examine(str(path))
    assert tables.build(part)
    assert [offset for offset, _ in found(tables, part, FIRST)] == [2]
    assert [offset for offset, _ in found(tables, part, LAST)] == [2]
    assert len(found(tables, part, TWICE)) == 1


def _build(path: str, environ: dict[str, str], start: object) -> None:
    start.wait(30)  # type: ignore[attr-defined]
    RoomIndex(environ, True).build(examine(path))


def test_commands_that_build_at_once_leave_one_good_table(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(text_of(5, 20_000))
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    builders = [context.Process(target=_build, args=(str(path), environ, start)) for _ in range(3)]
    for builder in builders:
        builder.start()
    start.set()
    for builder in builders:
        builder.join(60)
        assert builder.exitcode == 0
    assert len(found(RoomIndex(environ, True), examine(str(path)), FIRST)) == 1
    assert not [file for file in (tmp_path / "cache").rglob(".*") if file.is_file()]


def test_only_numbers_of_15_to_20_digits_below_2_64_are_kept() -> None:
    text = bytearray(
        b"1 12345678901234 123456789012345 18446744073709551615 18446744073709551616 123456789012345678901 x"
    )
    assert long_numbers(text, 0, len(text)) == {123456789012345, 2**64 - 1}
    assert long_numbers(text, 17, 32) == {123456789012345}
    assert room_index.SHORTEST == 15
