from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.logs.blocks import LINE
from pdctl.logs.follow import follow
from pdctl.logs.scan import RawLine
from pdctl.logs.source import open_logs


class Follower:
    """follow() in a thread; `wait` returns once so many lines have come."""

    def __init__(self, path: Path, start: int | None = None) -> None:
        self.lines: list[RawLine] = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        source = follow(open_logs([str(path)])[0], self._stop.is_set, start=start, poll=0.01)
        self._thread = threading.Thread(target=self._run, args=(source,))
        self._thread.start()

    def _run(self, source: Iterator[RawLine]) -> None:
        for raw in source:
            with self._changed:
                self.lines.append(raw)
                self._changed.notify_all()

    def wait(self, count: int) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, timeout=20), self.lines
            return [raw.line for raw in self.lines]

    def end(self) -> list[bytes]:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return [raw.line for raw in self.lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "d.log"
    file.write_bytes(b"old one\nold two\n")
    return file


@pytest.fixture
def started(path: Path) -> Iterator[Callable[..., Follower]]:
    running: list[Follower] = []

    def start(offset: int | None = None) -> Follower:
        running.append(Follower(path, offset))
        return running[-1]

    yield start
    for each in running:
        each.end()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_new_lines_come_whole_and_with_their_places(path: Path, started: Callable[..., Follower]) -> None:
    follower = started()
    append(path, b"three\nfo")
    assert follower.wait(1) == [b"three"]
    append(path, b"ur\r\n\xff\x00\n")
    assert follower.wait(3) == [b"three", b"four\r", b"\xff\x00"]
    assert [(raw.place.line, raw.place.offset) for raw in follower.lines] == [(3, 16), (4, 22), (5, 28)]


def test_it_can_begin_at_the_beginning(path: Path, started: Callable[..., Follower]) -> None:
    assert started(0).wait(2) == [b"old one", b"old two"]


def test_a_renamed_file_is_read_out_before_the_new_one(path: Path, started: Callable[..., Follower]) -> None:
    follower = started()
    append(path, b"before\n")
    follower.wait(1)
    rotated = path.with_name("d.log.1")
    path.rename(rotated)
    append(rotated, b"late\nno newline")
    path.write_bytes(b"new\n")
    assert follower.wait(4) == [b"before", b"late", b"no newline", b"new"]
    assert [raw.place.line for raw in follower.lines] == [3, 4, 5, 1]


def test_a_truncated_file_is_read_from_its_beginning(path: Path, started: Callable[..., Follower]) -> None:
    follower = started()
    append(path, b"x" * 1000 + b"\n")
    follower.wait(1)
    path.write_bytes(b"again\n")
    assert follower.wait(2)[1:] == [b"again"]
    assert follower.lines[1].place.line == 1


def test_a_file_that_is_gone_is_waited_for(path: Path, started: Callable[..., Follower]) -> None:
    follower = started()
    path.unlink()
    path.with_name("e.log").write_bytes(b"back\n")
    path.with_name("e.log").rename(path)
    assert follower.wait(1) == [b"back"]


def test_an_endless_line_is_cut(path: Path, started: Callable[..., Follower]) -> None:
    follower = started()
    append(path, b"x" * 3_000_000)
    append(path, b"\nlast\n")
    first, last = follower.wait(2)
    assert (first, last) == (b"x" * LINE, b"last")
    assert follower.lines[1].place.offset == 16 + 3_000_001


def test_what_was_written_before_the_end_is_handed_on(path: Path) -> None:
    stopped = threading.Event()
    source = follow(open_logs([str(path)])[0], stopped.is_set, poll=0.01)
    append(path, b"one\n" * 3)
    assert next(source).line == b"one"
    append(path, b"two\n")
    stopped.set()
    assert [raw.line for raw in source] == [b"one", b"one", b"two"]
