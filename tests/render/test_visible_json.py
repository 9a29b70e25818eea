"""JSON on a terminal: what steers it, or turns a line around, is written as an escape; the value stays the same."""

from __future__ import annotations

import json

import pytest

from pdctl.render.term import as_json, visible


@pytest.mark.parametrize(
    "text", ["\x9b31m", "a\u202eb", "\u2066x\u2069", "\x85", "\ud800", "\u200b\ufeff", "\U000e0001", "\x1b[2J"]
)
def test_nothing_steers_the_terminal(text: str) -> None:
    document = as_json({"Zoë 模型": ["résumé", text]})
    assert document.replace("\n", "").isprintable()
    assert json.loads(document) == {"Zoë 模型": ["résumé", text]}
    assert "Zoë 模型" in document
    document.encode()


def test_a_byte_of_a_name_that_is_not_text_is_shown_as_that_byte() -> None:
    assert visible("rou\udcffter.log") == r"rou\xffter.log"
