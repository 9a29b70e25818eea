"""Whatever stands in a file or a `--set`, the answer is a topology or a TopologyError that can be shown."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from pdctl.errors import TopologyError
from pdctl.render import diagnostics
from pdctl.render.term import Term
from pdctl.topology.resolve import load

from .conftest import ROOT

SCRAPS = (
    *(
        "\n",
        "  ",
        "\t",
        ":",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "| ",
        "> ",
        "? ",
        "# ",
        "=",
        ".",
        "=[",
        "%",
        "@",
    ),
    *("&a ", "*a", "<<: *a", "!!str ", "!x ", "---\n", "...\n", "${", "$", "${X:-", "~", "null", "yes", "0o7", "1_0"),
    *("-1", "1e400", "9" * 5000, "9" * 5000 + "GiB", "\u2028", "\x85", "\x00", "\x1b", "\ufeff", "é", "日本", "x-"),
    *("roles", "args: {tp: 1}"),
)


def answer(path: Path, sets: list[str]) -> str:
    """The topology's name, or the problems as text; empty if a refusal had nothing to say."""
    try:
        return load([path], sets, {}).name
    except TopologyError as error:
        stream = io.StringIO()
        diagnostics.show(diagnostics.of(error), Term(stream))
        return stream.getvalue()


@pytest.mark.parametrize("seed", range(8))
def test_mutated_topologies(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "topologies").glob("*.yaml"))]
    path = tmp_path / "t.yaml"
    for _ in range(60):
        text = dice.choice(texts).partition("version:")[2]
        for _ in range(dice.randint(1, 4)):
            start = dice.randrange(len(text))
            text = text[:start] + dice.choice(SCRAPS) + text[start + dice.choice((0, 0, 1, 5)) :]
        path.write_text("version:" + text, encoding="utf-8")
        assert answer(path, [])


@pytest.mark.parametrize("seed", range(4))
def test_mutated_sets(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    path = tmp_path / "t.yaml"
    path.write_text("version: pdctl/v1\nroles: {prefill: {}, decode: {}}\n")
    for _ in range(150):
        text = dice.choice(
            ("router.port=8000", "roles.decode={tp: 2}", 'pools.p.labels."a.b"=c', "engine.args.x=[1, 2]")
        )
        for _ in range(dice.randint(1, 3)):
            start = dice.randrange(len(text))
            text = text[:start] + dice.choice(SCRAPS) + text[start + dice.choice((0, 1)) :]
        assert answer(path, [text])
