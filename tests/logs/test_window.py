from __future__ import annotations

import datetime as dt
import gzip
import time
from pathlib import Path

import pytest

from pdctl.errors import UsageError
from pdctl.logs import window
from pdctl.logs.blocks import LINE, LineNumbers
from pdctl.logs.clock import Clock
from pdctl.logs.source import Log, open_logs
from pdctl.logs.window import moment, timezone
from tests.cases import for_each

BEGIN = 1795226400.0  # 2026-11-21 02:00:00 UTC
UTC = dt.timezone.utc
LAST = dt.datetime(2026, 11, 21, 1, 34, 20, tzinfo=UTC).timestamp()
CLOCK = Clock(UTC)


def stamped(second: int, text: str = "x" * 120) -> str:
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(BEGIN + second))}] {second} {text}\n"


def log_of(path: Path, text: str, packed: bool = False) -> Log:
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return open_logs([str(path)])[0]


def inside(log: Log, cut: window.PartRanges) -> list[bytes]:
    (part,) = log.parts
    return [raw.line for start, end in cut.ranges for raw in window.lines(part, start, end, LineNumbers(part))]


@pytest.fixture
def busy(tmp_path: Path) -> Log:
    """Ten thousand seconds, one line each, with a traceback now and then and neighbours out of order."""
    lines = [stamped(second) for second in range(10_000)]
    for at in range(0, 10_000, 500):
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
        lines[at] += "Traceback (most recent call last):\n  no stamp here\n"
    return log_of(tmp_path / "d.log", "".join(lines))


def test_what_was_written_between_two_moments_is_found_by_bisecting(busy: Log) -> None:
    (part,) = busy.parts
    cut = window.between(part, BEGIN + 5000, BEGIN + 5010, CLOCK, 1 << 30)
    lines = inside(busy, cut)
    assert cut.whole
    for second in range(5000, 5011):
        assert stamped(second).encode().rstrip() in lines
    assert b"  no stamp here" in lines
    assert sum(map(len, lines)) < 4 * window.PROBE


@pytest.mark.parametrize(("since", "until", "count"), [(-100, -50, 0), (20_000, 20_010, 0), (-1e9, 1e9, 10_000)])
def test_moments_outside_the_log_give_its_edge_or_all_of_it(busy: Log, since: float, until: float, count: int) -> None:
    lines = inside(busy, window.between(busy.parts[0], BEGIN + since, BEGIN + until, CLOCK, 1 << 30))
    found = [line for line in lines if line.startswith(b"[")]
    assert len(found) <= 400 if count == 0 else len(found) == count


def test_too_much_is_cut_to_both_ends_or_to_the_moments_asked_for(busy: Log) -> None:
    (part,) = busy.parts
    ends = window.between(part, BEGIN + 1000, BEGIN + 9000, CLOCK, 8000)
    text = b"\n".join(inside(busy, ends))
    assert not ends.whole
    assert len(text) < 9000
    assert b" 5000 x" not in text
    around = window.between(part, BEGIN + 1000, BEGIN + 9000, CLOCK, 1 << 17, (BEGIN + 5000, BEGIN + 5001))
    text = b"\n".join(inside(busy, around))
    assert b" 5000 x" in text
    assert b" 1000 x" not in text
    assert text.count(b" 5000 x") == 1
    assert len(text) < 1 << 18


def test_a_log_without_any_time_is_taken_whole(tmp_path: Path) -> None:
    log = log_of(tmp_path / "d.log", "no time at all\n" * 5000)
    cut = window.between(log.parts[0], BEGIN, BEGIN + 1, CLOCK, 1 << 30)
    assert len(inside(log, cut)) in range(1, 5001)


def test_a_compressed_part_is_read_through_and_cut_to_blocks(tmp_path: Path) -> None:
    text = "".join(stamped(second) for second in range(20_000))
    log = log_of(tmp_path / "d.log.gz", text, packed=True)
    (part,) = log.parts
    lines = inside(log, window.between(part, BEGIN + 9000, BEGIN + 9010, CLOCK, 1 << 30))
    for second in range(9000, 9011):
        assert stamped(second).encode().rstrip() in lines
    assert len(lines) < 10_000
    assert len(inside(log, window.between(part, float("-inf"), float("inf"), CLOCK, 1 << 62))) == 20_000
    cut = window.between(part, BEGIN, BEGIN + 20_000, CLOCK, 1 << 10)
    assert not cut.whole
    assert len(inside(log, cut)) < 12_000


@pytest.mark.parametrize("packed", [False, True])
def test_head_and_tail_are_whole_lines(tmp_path: Path, packed: bool) -> None:
    log = log_of(tmp_path / "d.log", "".join(stamped(second) for second in range(3000)), packed)
    head, tail = window.head(log, 1000), window.tail(log, 1000)
    assert head[0].line == stamped(0).encode().rstrip()
    assert tail[-1].line == stamped(2999).encode().rstrip()
    assert all(raw.line.startswith(b"[2026") for raw in (*head, *tail))
    assert len(head) < 12
    assert len(tail) < 12
    assert [raw.place.line for raw in tail][-1] == 3000


def test_the_tail_of_a_log_that_was_just_rotated_is_in_the_part_before(tmp_path: Path) -> None:
    (tmp_path / "d.log.1").write_text(stamped(1))
    (tmp_path / "d.log").write_text("")
    (log,) = open_logs([str(tmp_path)])
    assert [raw.line for raw in window.tail(log, 1000)] == [stamped(1).encode().rstrip()]


def test_lines_are_cut_and_a_line_that_is_longer_than_the_buffer_comes_once(tmp_path: Path) -> None:
    log = log_of(tmp_path / "d.log", "first\n" + "x" * 1_000_000 + "\n" + "y" * 100_000 + "\nlast\n")
    (part,) = log.parts
    for end in (part.size, 1 << 40):
        lines = [raw.line for raw in window.lines(part, 0, end, LineNumbers(part))]
        assert lines == [b"first", b"x" * LINE, b"y" * LINE, b"last"]


def test_samples_are_spread_over_all_parts(tmp_path: Path) -> None:
    (tmp_path / "d.log.1").write_text("".join(stamped(second) for second in range(3000)))
    (tmp_path / "d.log").write_text("".join(stamped(second) for second in range(3000, 6000)))
    (log,) = open_logs([str(tmp_path)])
    found = {int(raw.line.split()[2]) // 1500 for raw in window.samples(log, 3, 2000)}
    assert found == {1, 2, 3}


@for_each(
    ("text", "expected"),
    [
        ("2026-11-21T01:34:20", LAST),
        ("2026-11-21 01:34:20Z", LAST),
        ("2026-11-21T03:34:20+02:00", LAST),
        ("2026-11-21", LAST - 5660),
        ("01:34:20", LAST),
        ("01:34", LAST - 20),
        ("-10m", LAST - 600),
        ("10m", LAST - 600),
        ("-1h30m", LAST - 5400),
    ],
)
def test_a_moment_is_absolute_or_relative_to_the_last_line(text: str, expected: float) -> None:
    assert moment("--since", text, UTC, lambda: LAST) == pytest.approx(expected)


@for_each(
    ("first", "expected"),
    [
        (LAST - 600, LAST + 0.5),  # the logs are of that day: nothing was written since then
        (LAST - 7200, LAST + 0.5 - 86400),  # they began the day before
        (None, LAST + 0.5),
    ],
)
def test_a_clock_time_behind_the_last_line_is_of_the_day_before_where_the_logs_have_one(
    first: float | None, expected: float
) -> None:
    assert moment("--since", "01:34:20.5", UTC, lambda: LAST, lambda: first) == pytest.approx(expected)


def test_a_moment_without_a_zone_is_one_of_the_logs() -> None:
    east = dt.timezone(dt.timedelta(hours=2))
    assert moment("--since", "2026-11-21T03:34:20", east, lambda: LAST) == LAST
    assert moment("--since", "03:34:20", east, lambda: LAST) == LAST


@for_each("text", ["yesterday", "25:00", "01:60", "-10", "10 parsecs", "", "2026-13-01"])
def test_what_is_no_moment_is_said_so(text: str) -> None:
    with pytest.raises(UsageError):
        moment("--since", text, UTC, lambda: LAST)


def test_zones_by_name_and_by_offset() -> None:
    assert timezone(None) is None
    assert timezone("local") is None
    assert timezone("UTC") is dt.timezone.utc
    assert timezone("-05:30") == dt.timezone(-dt.timedelta(hours=5, minutes=30))
    berlin = timezone("Europe/Berlin")
    assert berlin is not None
    assert berlin.utcoffset(dt.datetime(2026, 7, 1)) == dt.timedelta(hours=2)
    for text in ("Atlantis/Centre", "+25:00", "", "../etc/passwd"):
        with pytest.raises(UsageError):
            timezone(text)


@for_each(
    "text",
    ["-99999999h", "0001-01-01T00:00:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59", "9999-12-31T23:59:59-12:00"],
)
def test_a_moment_that_no_log_has_is_refused(text: str) -> None:
    for zone in (None, timezone("-12:00"), timezone("+14:00")):
        with pytest.raises(UsageError, match=r"^--since .*: (this is more than|no log is from the year)"):
            moment("--since", text, zone, lambda: 1.79e9)
