"""Log files are read in whole lines, as they grow, and merged by the time their lines carry."""

from __future__ import annotations

import threading
from pathlib import Path

from pdctl.launch.log_tail import CHUNK, LogFollower, LogLine, LogTail, history, last_lines, part, parts


def test_only_whole_lines_and_only_new_ones(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    assert list(tail.lines()) == []
    log.write_bytes(b"one\ntw")
    assert list(tail.lines()) == ["one"]
    with log.open("ab") as stream:
        stream.write(b"o\r\nthree")
    assert list(tail.lines()) == ["two"]
    assert tail.rest() == "three"
    assert tail.rest() == ""


def test_a_line_longer_than_a_read_stays_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a" * (CHUNK + 5) + "\nb\n")
    assert [len(line) for line in LogTail(log).lines()] == [CHUNK + 5, 1]


def test_a_tail_starts_at_its_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\nnew\n")
    assert list(LogTail(log, 4).lines()) == ["new"]


def test_last_lines_of_one_generation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n\n" for number in range(5000)))
    assert last_lines(log, 2) == ("line 4998", "line 4999")
    start = log.stat().st_size
    with log.open("a") as stream:
        stream.write("again\n")
    assert last_lines(log, 20, start) == ("again",)
    assert last_lines(tmp_path / "none", 3) == ()


def test_history_is_merged_by_time_and_tracebacks_stay_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        "[2026-01-02 10:00:01 TP0] a1\nTraceback\n  File x\n[2026-01-02 10:00:04] a2\n", encoding="utf-8"
    )
    (tmp_path / "b").write_text("[2026-01-02 10:00:02] b1\n[2026-01-02 10:00:03] b2\n", encoding="utf-8")
    files = {"a": LogTail(tmp_path / "a"), "b": LogTail(tmp_path / "b")}
    told = [(line.source, line.text.rpartition("] ")[2]) for line in history(files)]
    assert told == [("a", "a1"), ("a", "Traceback"), ("a", "  File x"), ("b", "b1"), ("b", "b2"), ("a", "a2")]


def test_since_leaves_out_what_was_written_before(tmp_path: Path) -> None:
    """A whole second counts to its end; a line without a time goes with the one above it."""
    (tmp_path / "a").write_text(
        "started\n[2026-01-02 10:00:01] a1\nTraceback\n[2026-01-02 10:00:02 TP0] a2\n  File x\n"
        "[2026-01-02 10:00:03] a3\n"
    )
    (tmp_path / "b").write_text(
        "[2026-01-02 10:00:02.499] b1\n[2026-01-02 10:00:02.500] b2\n\x1b[2m2026-01-02 10:00:04\x1b[0m b3\n"
    )

    def told(tail: int | None = None) -> list[str]:
        files = {name: LogTail(tmp_path / name) for name in ("a", "b")}
        return [line.text.split()[-1] for line in history(files, tail, "2026-01-02 10:00:02.500")]

    assert told() == ["a2", "x", "b2", "a3", "b3"]
    assert told(1) == ["a3", "b3"]


def test_tail_is_per_instance(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(9)))
    files = {name: LogTail(tmp_path / name) for name in ("a", "b")}
    assert [line.text for line in history(files, 2)] == ["a7", "a8", "b7", "b8"]


def test_a_follower_hands_on_everything_up_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    seen: list[LogLine] = []
    first = threading.Event()

    def emit(line: LogLine) -> None:
        seen.append(line)
        first.set()

    follower = LogFollower({"a": LogTail(log)}, emit)
    follower.start()
    log.write_text("one\n")
    assert first.wait(10)
    with log.open("a") as stream:
        stream.write("two\nlast words")
    follower.close()
    assert seen == [LogLine("a", "one"), LogLine("a", "two"), LogLine("a", "last words")]


def test_a_log_goes_on_in_the_files_of_later_generations(tmp_path: Path) -> None:
    log = tmp_path / "decode-0.log"
    log.write_text("old run\none\n")
    tail = LogTail(log, len("old run\n"))
    assert list(tail.lines()) == ["one"]
    with log.open("a") as stream:
        stream.write("two\ncut of")
    part(log, 2).write_text("three\n")
    part(log, 3).write_text("four\n")
    assert list(tail.lines()) == ["two", "cut of", "three", "four"]
    assert list(parts(log)) == [log, tmp_path / "decode-0.g2.log", tmp_path / "decode-0.g3.log"]
    with part(log, 3).open("a") as stream:
        stream.write("five\n")
    assert list(tail.lines()) == ["five"]
