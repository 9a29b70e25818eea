from __future__ import annotations

import pytest

from pdctl.units import (
    UnitError,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from tests.cases import for_each


@for_each(
    ("text", "size"),
    [
        ("80GiB", 85_899_345_920),
        ("80 GiB", 85_899_345_920),
        ("80GB", 80_000_000_000),
        ("16Gi", 17_179_869_184),
        ("1.5GiB", 1_610_612_736),
        ("512MiB", 536_870_912),
        ("141GB", 141_000_000_000),
        ("1kB", 1000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@for_each(
    ("text", "rate"),
    [("400Gbps", 400 * 10**9), ("1.6Tbps", 1_600 * 10**9), ("100 Gb/s", 10**11), ("25Mbps", 25 * 10**6)],
)
def test_rates_are_bits_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == rate


@for_each(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5), ("1m1.5s", 61.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@for_each(
    ("value", "text"),
    [(85_899_345_920, "80GiB"), (48_000_000_000, "48GB"), (1_048_577, "1048577B"), (10**12, "1TB")],
)
def test_a_size_is_written_in_its_shortest_exact_unit(value: int, text: str) -> None:
    assert format_size(value) == text


@for_each(("value", "text"), [(1800.0, "30m"), (5400.0, "1h30m"), (0.0, "0ms"), (0.04, "40ms"), (1.5, "1.5s")])
def test_a_duration_is_written_without_empty_parts(value: float, text: str) -> None:
    assert format_duration(value) == text


@for_each(
    ("text", "fix"),
    [
        ("80", "80GiB"),
        ("80gb", "80GB"),
        ("80Gb", "80GB"),
        ("80G", "80GiB"),
        ("big", "80GiB"),
        ("0GiB", "larger"),
        ("0.3B", "rounder"),
        ("5parsec", "units are"),
    ],
)
def test_a_wrong_size_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(text)
    assert fix in caught.value.fix


@for_each(
    ("text", "fix"),
    [("2days", "48h"), ("3min", "3m"), ("10sec", "10s"), ("5", "5s"), ("5x", "units are"), ("soon", "1h30m")],
)
def test_a_wrong_duration_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration(text)
    assert fix in caught.value.fix


@for_each(("text", "fix"), [("50GB/s", "400Gbps"), ("400", "400Gbps"), ("4gbps", "4Gbps")])
def test_a_wrong_rate_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_rate(text)
    assert fix in caught.value.fix


@for_each("text", ["501h", "99999999999999999999h", f"{'9' * 99}ms"])
def test_a_time_to_wait_has_a_bound(text: str) -> None:
    with pytest.raises(UnitError, match="more than 500h"):
        parse_duration(text)
    assert parse_duration("500h") == 1_800_000.0


def test_a_size_has_a_bound() -> None:
    with pytest.raises(UnitError, match="more than any machine has"):
        parse_size(f"{10**20}TiB")
