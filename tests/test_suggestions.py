from __future__ import annotations

import sys
from difflib import get_close_matches

import pytest

from pdctl import suggestions
from pdctl.engines.sglang.arguments import arguments
from pdctl.suggestions import distance, hint, nearest
from tests.cases import for_each

KEYS = ("instances", "tp", "dp", "page-size", "mem-fraction", "pool", "args", "env", "gpu", "gpu-memory")


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("tp", "tp", 0),
        ("sgalng", "sglang", 1),  # a swap of neighbours is one slip
        ("prefil", "prefill", 1),
        ("polcy", "policy", 1),
        ("abcd", "dcba", 3),
    ],
)
def test_distance(one: str, other: str, edits: int) -> None:
    assert min(distance(one, other, 2), 3) == edits


@for_each(
    ("word", "meant"),
    [
        ("instnaces", "instances"),
        ("page_size", "page-size"),
        ("PageSize", "page-size"),
        ("mem-fraction-static", "mem-fraction"),
        ("gpu-mem", "gpu-memory"),
        ("inst", "instances"),
        ("arg", "args"),
        ("xp", None),  # two letters are one edit from half the keys
        ("replicas", None),
    ],
)
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, KEYS) == meant


def test_a_short_list_is_told_whole_and_a_long_one_is_not() -> None:
    assert hint("decoder", ("prefill", "decode")) == "did you mean `decode`?; allowed: prefill, decode"
    assert hint("replicas", KEYS) == ""


def test_of_many_names_few_are_compared_and_a_misspelt_one_is_still_found() -> None:
    """A script with thousands of different flags that no release has took 2 to 3 ms for each of them."""
    known = tuple(arguments())
    assert len(known) > 500
    assert suggestions.similar("disaggregaton-transfer-backend", known, cutoff=0.8) == [
        "disaggregation-transfer-backend"
    ]
    for name in known:
        if len(name) > 8:
            typed = f"{name[:3]}{name[4:]}"
            assert suggestions.similar(typed, known, cutoff=0.8) == get_close_matches(typed, known, 1, 0.8), typed
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        suggestions.similar("totally-unknown-flag-of-nobody", known, cutoff=0.8)
    finally:
        sys.setprofile(None)
    assert 0 < calls < 3000
