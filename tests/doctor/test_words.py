"""Lists of names, and the verbs behind them."""

from __future__ import annotations

from pdctl.doctor.check import agreeing, names
from tests.cases import for_each


@for_each(
    ("who", "said"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c", "d"], "a, b, c and d"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d and 2 more"),
    ],
)
def test_names_as_they_are_read_aloud(who: list[str], said: str) -> None:
    assert names(who) == said


def test_a_verb_agrees_with_how_many_it_is_about() -> None:
    assert agreeing("decode-0 has no metrics", "decode-0") == "decode-0 has no metrics"
    assert agreeing("a and b has no metrics, as c has", "a and b") == "a and b have no metrics, as c has"
    assert agreeing("a, b and c is killed", "a, b and c") == "a, b and c are killed"
    assert agreeing("page size is 16 on a and b", "a and b") == "page size is 16 on a and b"
