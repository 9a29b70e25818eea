from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.logs import blocks as buffers
from pdctl.logs import scan
from pdctl.logs.blocks import LINE, SIZE, Buffer
from pdctl.logs.scan import ByteSpan, ScanJob, find_lines, search
from pdctl.logs.source import Log, open_logs

ROOM = b"2148025886387619708"


def log_of(path: Path, data: bytes) -> Log:
    path.write_bytes(data)
    return open_logs([str(path)])[0]


def naive(data: bytes, number: bytes) -> list[tuple[int, int, bytes]]:
    """Line, offset and text of every line in which `number` stands apart from digits, by one expression per line."""
    wanted = re.compile(rb"(?<![0-9])" + number + rb"(?![0-9])")
    out, offset = [], 0
    for at, text in enumerate(data.split(b"\n"), 1):
        if wanted.search(text):
            out.append((at, offset, text[:LINE]))
        offset += len(text) + 1
    return out


def found(log: Log, number: bytes) -> list[tuple[int, int, bytes]]:
    return [(raw.place.line, raw.place.offset, raw.line) for raw in find_lines(log, [number])]


# Digits, newlines, NUL, CR, colour codes and whole rooms, so that hits and near misses are common.
TEXT = st.lists(
    st.one_of(
        st.sampled_from([b"777", b"7", b"77", b"0", b"\n", b"\n\n", b"\r\n", b"\x00", b"\x1b[2m", b"room=777"]),
        st.binary(max_size=6).map(lambda some: some.replace(b"|", b"!")),  # which docker compose writes behind a name
    ),
    max_size=60,
).map(lambda parts: b"log " + b"".join(parts))  # never UTF-16's mark


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, st.booleans())
def test_any_bytes_give_the_lines_a_plain_reading_gives(tmp_path: Path, data: bytes, packed: bool) -> None:
    log = log_of(tmp_path / "d.log", gzip.compress(data) if packed else data)
    assert found(log, b"777") == naive(data, b"777")


@settings(max_examples=300, deadline=None)
@given(TEXT, st.integers(16, 80))
def test_lines_longer_than_the_buffer_give_the_same_places(data: bytes, size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = log_of(Path(directory) / "d.log", data)
        span = ByteSpan(log.parts[0], 0, len(data))
        hits = list(search(span, [scan.literal_term(b"777")], Buffer(size)))
    expected = naive(data, b"777")
    assert [hit.offset for hit in hits] == [offset for _, offset, _ in expected]
    assert all(text.startswith(hit.text) for hit, (_, _, text) in zip(hits, expected, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT)
def test_without_the_c_library_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = log_of(Path(directory) / "d.log", data)
        with monkeypatch.context() as patched:
            patched.setattr(buffers, "_WORTH", 0)
            fast = found(log, b"777")
            patched.setattr(buffers, "memmem", lambda: None)
            assert found(log, b"777") == fast


def test_the_c_library_is_used_where_there_is_one() -> None:
    assert buffers.memmem() is not None


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_100_megabytes_is_found_and_cut(tmp_path: Path, packed: bool) -> None:
    size = 100 << 20 if not packed else 20 << 20
    data = b"first\n" + b"x" * size + b" room=" + ROOM + b" " + b"y" * SIZE + b"\nlast " + ROOM + b"\n"
    log = log_of(tmp_path / "d.log", gzip.compress(data, 1) if packed else data)
    long, last = find_lines(log, [ROOM])
    assert (long.place.line, long.place.offset, long.line) == (2, 6, b"x" * LINE)
    assert (last.place.line, last.line) == (3, b"last " + ROOM)


def test_hits_on_both_sides_of_every_split_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPAN", 1000)
    monkeypatch.setattr(scan, "_SEEK", 500)
    data = b"".join(b"line %d room=%d\n" % (at, 777 if at % 7 == 0 else at) for at in range(3000))
    log = log_of(tmp_path / "d.log", data)
    (part,) = log.parts
    spans = list(scan.spans(part))
    assert len(spans) > 20
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
    for threads in (1, 3):
        jobs = [ScanJob(span, [scan.literal_term(b"777")]) for span in spans]
        hits = [hit for each in scan.scan(jobs, threads) for hit in each.hits]
        assert [(hit.offset, hit.text) for hit in hits] == [(offset, text) for _, offset, text in naive(data, b"777")]


def test_few_bytes_are_not_worth_a_thread() -> None:
    assert scan.thread_count(1 << 20) == 1
    assert scan.thread_count(1 << 40) >= 1
