from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdctl.logs import log_cache
from pdctl.logs.part import examine

LINE = b"[2026-11-21 02:00:00] a line of a log\n"


@pytest.fixture(params=[100, 20_000], ids=["small", "sampled"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "d.log"
    file.write_bytes(b"".join(b"%d %b" % (at, LINE) for at in range(request.param)))
    return file


def taken(path: Path) -> log_cache.Fingerprint:
    part = examine(str(path))
    found = log_cache.take_fingerprint(part, log_cache.whole_lines(part))
    assert found is not None
    return found


def holds(old: log_cache.Fingerprint, path: Path) -> bool:
    return log_cache.still_matches(old, examine(str(path)))


def test_the_same_file_holds_and_so_does_one_that_grew(path: Path) -> None:
    old = taken(path)
    assert holds(old, path)
    with path.open("ab") as stream:
        stream.write(LINE)
    assert holds(old, path)


def test_a_file_that_was_renamed_is_the_same(path: Path) -> None:
    old = taken(path)
    moved = path.with_name("d.log.1")
    path.rename(moved)
    assert holds(old, moved)


def test_another_file_by_the_same_name_is_not(path: Path) -> None:
    old = taken(path)
    data = path.read_bytes()
    path.rename(path.with_name("d.log.1"))
    path.write_bytes(data)
    assert not holds(old, path)


def test_a_file_cut_off_in_place_is_not_even_when_it_has_grown_again(path: Path) -> None:
    old = taken(path)
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(0)
    assert not holds(old, path)
    with path.open("ab") as stream:
        while stream.tell() < size + 1000:
            stream.write(b"later " + LINE)
    assert not holds(old, path)


def test_a_file_of_the_same_size_that_was_written_to_is_not(path: Path) -> None:
    old = taken(path)
    state = path.stat()
    with path.open("r+b") as stream:
        stream.seek(2000)
        stream.write(b"#")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))
    assert not holds(old, path)


def test_only_whole_lines_are_covered(path: Path) -> None:
    size = path.stat().st_size
    with path.open("ab") as stream:
        stream.write(b"room=123")
    assert log_cache.whole_lines(examine(str(path))) == size
    path.write_bytes(b"no newline at all")
    assert log_cache.whole_lines(examine(str(path))) == 0
