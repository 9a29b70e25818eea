from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from pdctl.engines.prefix import split
from pdctl.logs.clock import DAY, Clock, Instant, undated_since, zone_of_offset

BERLIN = ZoneInfo("Europe/Berlin")


def at(clock: Clock, prefix: str) -> Instant | None:
    stamp = split(f"{prefix} message".encode()).stamp
    assert stamp is not None
    return clock.read(stamp)


def utc(text: str) -> float:
    return dt.datetime.fromisoformat(text + "+00:00").timestamp()


def test_a_prefix_is_local_time_of_one_second() -> None:
    assert at(Clock(BERLIN), "[2026-11-21 02:00:26 TP0]") == (utc("2026-11-21T01:00:26"), 1.0)
    assert at(Clock(dt.timezone.utc), "[2026-11-21 02:00:26.250 DP1 TP3]") == (utc("2026-11-21T02:00:26.250"), 0.001)


def test_a_zone_in_the_line_wins() -> None:
    line = b"2026-11-21T02:00:26.5+05:30 stdout F [2026-11-21 02:00:26] x"
    stamp = split(line).stamp
    assert stamp is not None
    assert Clock(BERLIN).read(stamp) == (utc("2026-11-20T20:30:26.500"), 0.1)


def test_an_hour_that_comes_twice_is_uncertain_by_an_hour() -> None:
    """2026-10-25, 03:00 summer time is 02:00 winter time in Berlin."""
    assert at(Clock(BERLIN), "[2026-10-25 02:30:00]") == (utc("2026-10-25T00:30:00"), 3601.0)
    assert at(Clock(BERLIN), "[2026-10-25 03:30:00]") == (utc("2026-10-25T02:30:00"), 1.0)


def test_an_hour_that_never_was_is_read_all_the_same() -> None:
    assert at(Clock(BERLIN), "[2026-03-29 02:30:00]") == (utc("2026-03-29T01:30:00"), 1.0)


def test_a_date_no_calendar_has_is_no_time() -> None:
    assert at(Clock(dt.timezone.utc), "[2026-02-30 10:00:00]") is None


def test_a_time_without_a_date_means_the_first_one_from_a_given_moment_on() -> None:
    clock = Clock(dt.timezone.utc, lambda: utc("2026-11-20T16:00:00"))
    assert at(clock, "[04:46:19 TP0]") == (utc("2026-11-21T04:46:19"), 1.0)
    assert at(clock, "[16:00:00 TP0]") == (utc("2026-11-20T16:00:00"), 1.0)
    assert at(clock, "[23:59:59]") == (utc("2026-11-20T23:59:59"), 1.0)


def test_a_date_without_a_year_lies_next_to_a_given_moment() -> None:
    clock = Clock(dt.timezone.utc, lambda: utc("2026-12-31T23:00:00"))
    assert at(clock, "I0101 00:00:01.000000 12345 rdma.cpp:1]") == (utc("2027-01-01T00:00:01"), 1e-6)
    assert at(clock, "I1231 23:30:00.000000 12345 rdma.cpp:1]") == (utc("2026-12-31T23:30:00"), 1e-6)
    late = Clock(dt.timezone.utc, lambda: utc("2027-01-01T06:00:00"))
    assert at(late, "I1231 23:30:00.000000 12345 rdma.cpp:1]") == (utc("2026-12-31T23:30:00"), 1e-6)


def test_undated_lines_belong_to_the_day_of_the_dated_ones() -> None:
    dated = (utc("2026-11-21T04:40:00"), utc("2026-11-21T05:00:00"))
    clock = Clock(dt.timezone.utc, lambda: undated_since([], dated, utc("2030-01-01T00:00:00"), dt.timezone.utc))
    assert at(clock, "[04:46:19]") == (utc("2026-11-21T04:46:19"), 1.0)


@pytest.mark.parametrize("changed", ["2026-11-21T05:00:00", "2026-11-22T04:00:00"])
def test_undated_lines_alone_belong_to_the_day_before_the_files_last_change(changed: str) -> None:
    clocks = [4 * 3600 + 44 * 60, 4 * 3600 + 51 * 60]
    clock = Clock(dt.timezone.utc, lambda: undated_since(clocks, None, utc(changed), dt.timezone.utc))
    assert at(clock, "[04:44:00]") == (utc("2026-11-21T04:44:00"), 1.0)
    assert at(clock, "[04:51:19]") == (utc("2026-11-21T04:51:19"), 1.0)


def test_undated_lines_around_midnight_stay_in_order() -> None:
    clocks = [DAY - 60, 60.0]
    clock = Clock(dt.timezone.utc, lambda: undated_since(clocks, None, utc("2026-11-21T00:30:00"), dt.timezone.utc))
    before, after = at(clock, "[23:59:00]"), at(clock, "[00:01:00]")
    assert (before, after) == ((utc("2026-11-20T23:59:00"), 1.0), (utc("2026-11-21T00:01:00"), 1.0))


def test_the_zone_an_access_line_betrays() -> None:
    assert zone_of_offset("+0530") == dt.timezone(dt.timedelta(hours=5, minutes=30))
    assert zone_of_offset("-0800") == dt.timezone(dt.timedelta(hours=-8))
    assert [zone_of_offset(text) for text in ("", "UTC", "+9999", "0530")] == [None] * 4
