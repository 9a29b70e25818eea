"""Numbers from other people's text: of the size asked for, or none; never an exception, never a long wait."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.engines import numerals
from pdctl.fleet import peer_json
from tests.cases import for_each

DIGITS = "9" * 5000  # int() takes 4300 of them


@for_each("text", [None, "", "²", "٣", "+1", "-1", " 1", "1_0", "1.0", "0x1", str(2**64), DIGITS])
def test_what_is_no_whole_number(text: str | None) -> None:
    assert numerals.whole(text) is None


@for_each("text", ["", ".", "1.2.3", "..", "1_0", "nan", "inf", "٣", " 1", "1e", "1e400", "1" * 26, DIGITS])
def test_what_is_no_real_number(text: str) -> None:
    assert numerals.real(text) is None


def test_what_is_a_number() -> None:
    assert [numerals.whole(text) for text in ("0", "007", str(2**64 - 1))] == [0, 7, 2**64 - 1]
    assert [numerals.whole(text, 9) for text in ("9", "10")] == [9, None]
    assert [numerals.port(text) for text in ("8998", "70000", "100000")] == [8998, 70000, None]
    assert [numerals.signed(text) for text in ("-1", "1", "--1", "-", None)] == [-1, 1, None, None, None]
    assert [numerals.real(text) for text in ("12", "0.5", ".5", "-1.", "1.2e-05", "1e-300")] == [
        12, 0.5, 0.5, -1, 1.2e-05, 0,
    ]  # fmt: skip
    assert numerals.wholes(f"[3, {DIGITS}, 5]") == (3, 5)


def test_a_peers_numbers_have_the_same_bounds() -> None:
    assert [peer_json.integer(value) for value in (2**64 - 1, 2**64, -(2**64), True)] == [2**64 - 1, None, None, None]
    assert [peer_json.number(value) for value in (1e24, 1e25, -1e300, 10**400, math.nan)] == [1e24] + [None] * 4


@given(st.text(max_size=30) | st.from_regex(r"\A[+-]?[0-9.eE²٣]{0,40}\Z"))
@example(DIGITS + "x")
@example("1." + DIGITS + "e")
@settings(max_examples=300, deadline=None)
def test_whatever_stands_there_arithmetic_holds(text: str) -> None:
    found = numerals.real(text)
    assert not found or math.isfinite(found * numerals.MOST + numerals.MOST / found)
    for read in (numerals.whole, numerals.signed, numerals.port, numerals.wholes):
        read(text)
