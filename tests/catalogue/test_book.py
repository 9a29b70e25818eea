"""What people type, and what they meant."""

from __future__ import annotations

import pytest

from pdctl.catalogue import book
from pdctl.errors import ExitCode, UsageError
from tests.cases import for_each


@for_each(
    "word",
    [
        "PD201",
        "pd201",
        " PD201 ",
        "bootstrap-port-null",
        "Bootstrap_Port_Null",
        "201",
        " 201",
        "PD-201",
        "pd_201",
        "PD 201",
    ],
)
def test_a_code_or_its_name_in_any_case(word: str) -> None:
    assert book.find_entry(word).code == "PD201"


@for_each(
    ("word", "meant"),
    [
        ("bootstrap-port-nul", "PD201 (bootstrap-port-null)"),
        ("page-size", "PD302 (page-size-mismatch) or PD410 (page-size-one)"),
        ("roles-swaped", "PD301 (roles-swapped)"),
        ("PD2O1", "PD201 (bootstrap-port-null)"),
    ],
)
def test_a_near_miss_is_told_what_was_meant(word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        book.find_entry(word)
    assert caught.value.exit_code is ExitCode.USAGE
    assert word in caught.value.message
    assert caught.value.fix == f"did you mean {meant}?"


@for_each("word", ["", "xyzzy", "PD", "PDXYZ"])
def test_a_word_that_is_nothing_is_told_where_the_list_is(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        book.find_entry(word)
    assert caught.value.fix == "`pdctl explain --all` lists them"


@for_each(
    ("patterns", "codes"),
    [
        (["PD201"], ["PD201"]),
        (["30[1]", "801"], ["PD301", "PD801"]),
        (["90"], ["PD901", "PD902", "PD903", "PD904", "PD905"]),
        (["pd20"], [f"PD20{number}" for number in range(1, 10)]),
        (["PD9"], ["PD901", "PD902", "PD903", "PD904", "PD905"]),
        (["PD90[12]"], ["PD901", "PD902"]),
        (["bootstrap-port-*"], ["PD201", "PD202", "PD204", "PD206"]),
        (["*-DIED", "PD801"], ["PD704", "PD705", "PD710", "PD720", "PD801"]),
        (["roles-swapped", "PD301", "PD30[1]"], ["PD301"]),
    ],
)
def test_patterns_select(patterns: list[str], codes: list[str]) -> None:
    assert [entry.code for entry in book.select(patterns)] == codes


def test_nothing_asked_for_is_nothing_selected() -> None:
    assert book.select([]) == ()


@for_each("pattern", ["PD4x", "PD999", "no-*-such", "mismatch", "PD"])
def test_a_pattern_that_means_nothing_is_a_mistake(pattern: str) -> None:
    with pytest.raises(UsageError, match="no code or slug"):
        book.select(["PD201", pattern])


@for_each("line", ["Decode handshake failed", "Decode died of it", "KVTransferError: prefill rank lost", "two words"])
def test_a_line_of_a_log_is_no_misspelt_slug(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        book.select([line])
    assert refused.value.fix == "for a line of a log: pdctl diagnose LOG; `pdctl explain --all` lists the codes"


@for_each("words", ["bootstrap port null", "Bootstrap  port nul"])
def test_a_slug_with_spaces_is_a_misspelt_slug(words: str) -> None:
    with pytest.raises(UsageError) as refused:
        book.select([words])
    assert refused.value.fix == "did you mean PD201 (bootstrap-port-null)?"
