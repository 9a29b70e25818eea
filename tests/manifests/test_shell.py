"""A shell text as its commands: what a shell would run, as far as flags and variables go."""

from __future__ import annotations

import subprocess
import sys

from pdctl.manifests.shell import commands, variables
from tests.cases import for_each


def split(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in commands(text)]


@for_each(
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


@for_each(
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


@for_each(
    ("text", "expected"),
    [
        ('A="--x 1 --y"\nc $A "$A"', [["c", "--x", "1", "--y", "--x 1 --y"]]),
        ('A=\nc $A b "$A"', [["c", "b", ""]]),
        ('A=(--x "1 2")\nA+=(--y)\nc "${A[@]}" ${A[*]}', [["c", "--x", "1 2", "--y", "--x", "1", "2", "--y"]]),
        ('A=()\nc "${A[@]}" "$@" d', [["c", "d"]]),
        ("A=x\nA+=y\nc $A", [["c", "xy"]]),
        ("c '$A' \"$A\" \\$A", [["c", "$A", "$A", "$A"]]),
        ("P=1\nc $((P + 2)) $((Q * 2)) $((1 +))", [["c", "3", "$((Q * 2))", "$((1 +))"]]),
        ("c $(a | b 'x)' $(d)) `e f`", [["c", "$(a | b 'x)' $(d))", "$(e f)"]]),
        (": ${A:=7}\nc $A ${B:?no} ${A:-1}", [[":", "7"], ["c", "7", "${B:?no}", "7"]]),
        ('M=default\nM="$2"\nc $M', [["c", "default"]]),
        ("if x; then M=1; else M=$(f); fi\nc $M", [["x"], ["fi"], ["c", "1"]]),
        ("M=1\nM=$(f)\nc $M", [["c", "$(f)"]]),
        ("cat <<EOF > f\na; b\nEOF\nc <<-'X' d\n\ty\n\tX\ne", [["cat"], ["c", "d"], ["e"]]),
        ("if [ $A ]; then B=1 c; else d; fi", [["[", "$A", "]"], ["c"], ["d"], ["fi"]]),
        ("export A=1; local B=2; c $A$B", [["c", "12"]]),
    ],
)
def test_words_as_a_shell_makes_them(text: str, expected: list[list[str]]) -> None:
    assert split(text) == expected


@for_each(
    ("text", "expected"),
    [
        ("for i in 0 1; do c $i; done; d $i", ["c 0", "c 1", "d 1"]),
        ("for i in {2..0}\ndo\n  c $i\ndone", ["c 2", "c 1", "c 0"]),
        ("for i in $(seq 2) x; do c $i; done", ["c 1", "c 2", "c x"]),
        ("for i in a b; do for j in 0 1; do c $i$j; done; done", ["c a0", "c a1", "c b0", "c b1"]),
        ("for i in; do c; done; d", ["d"]),
        ("for i in 1; do c", ["c"]),
        ("while true; do c; done", ["true", "c", "done"]),
    ],
)
def test_loops_are_gone_through(text: str, expected: list[str]) -> None:
    assert [" ".join(words) for words in split(text) if words != ["do"]] == expected


def test_loops_in_loops_end() -> None:
    deep = "".join(f"for a{n} in {{1..64}}; do " for n in range(9))
    assert len(split(f"{deep}c; {'done; ' * 9}")) < 5000


def test_what_a_sourced_text_leaves_set() -> None:
    assert variables("A=1\nexport B=$A\nC=$(x)\n", {"Z": "0"}) == {"A": "1", "B": "1", "C": "$(x)", "Z": "0"}


@for_each("quote", ["", '"'])
@for_each("end", ["}", ""])
def test_defaults_inside_defaults_take_no_longer_than_their_text(quote: str, end: str) -> None:
    """Each of them once searched the rest of the text for its brace: hours, for this one."""
    program = f"""
from pdctl.manifests.shell import commands
(command,) = commands('a --b ' + {quote!r} + '${{A:-' * 200000 + 'x' + {end!r} * 200000 + {quote!r})
print(command.words[1].text)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "--b\n"
