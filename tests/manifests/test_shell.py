"""A shell text as its commands: what a shell would run, as far as flags and variables go."""

from __future__ import annotations

import pytest

from pdctl.manifests.shell import commands


def split(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b; c && d || e | f & g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a 'b c' \"d 'e'\" f\\ g", [["a", "b c", "d 'e'", "f g"]]),
        ("a \\\n  --b \\\n c\nd", [["a", "--b", "c"], ["d"]]),
        ("a # b\n# c\nd#e", [["a"], ["d#e"]]),
        ("a > log 2>&1 b <in 2>>err c >&2", [["a", "b", "c"]]),
        ("a 2> p1/log --flag 3 >x", [["a", "--flag", "3"]]),
        ("(cd x; a)", [["cd", "x"], ["a"]]),
        ("nohup env A=1 a", [["a"]]),
        ("exec a", [["a"]]),
        ("a ''", [["a", ""]]),
        ("a 'never closed", [["a", "never closed"]]),
        ("", []),
        ("# nothing\n\n", []),
        ("A=1", []),
        ('a "b\\"c" \'d\\\'', [["a", 'b"c', "d\\"]]),
    ],
)
def test_commands_and_words(text: str, expected: list[list[str]]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M=x\na $M ${M}y", [["a", "x", "xy"]]),
        ("a ${PORT:-30000} ${PORT-1}", [["a", "30000", "1"]]),
        ("a $UNKNOWN ${OTHER}", [["a", "$UNKNOWN", "${OTHER}"]]),
        ("P=1\nQ=${P}2\na $Q", [["a", "12"]]),
    ],
)
def test_variables_the_text_sets_are_filled_in_and_others_stay(text: str, expected: list[list[str]]) -> None:
    assert split(text) == expected


def test_the_environment_is_what_was_exported_by_then_and_put_in_front() -> None:
    text = "export A=1 B=2\nC=3\nexport C\nD=4\nE=5 a\nexport A=6\nb\n"
    first, second = commands(text)
    assert {said.name: said.value for said in first.env} == {"A": "1", "B": "2", "C": "3", "E": "5"}
    assert {said.name: said.value for said in second.env} == {"A": "6", "B": "2", "C": "3"}


def test_lines_are_those_of_the_text() -> None:
    text = "a \\\n  --b 1\n\n'two\nlines' c\n"
    found = [(word.text, word.line) for command in commands(text, 10) for word in command.words]
    assert found == [("a", 10), ("--b", 11), ("1", 11), ("two\nlines", 14), ("c", 14)]
