"""Every verb prints the same from one file as from the source tree: the snapshots, run on both builds.

`pytest -n0 -m heavy tests/tools/test_one_file_snapshots.py`: two minutes for pdctl.pyz, and for the executable its
build, which takes several; `PDCTL_BUILD_WORK=DIR` keeps the interpreter's objects in DIR.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.snapshots.cases import CASES
from tests.snapshots.said import FOLDER, outputs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]


def differing(command: list[str], shown: tuple[str, ...], folder: Path) -> list[str]:
    """Names of the snapshots it does not print. shown: how its own command lines begin, word by word."""
    cache = folder / "cache"
    texts = outputs(CASES, folder / "home", command, {"XDG_CACHE_HOME": str(cache)})
    unpacked = re.compile(rf"{re.escape(str(cache))}/pdctl/[^/\s]+/")
    words = re.compile(r'[",]*\s+(?:- |")?'.join(map(re.escape, shown)))  # in a line, a JSON list, a YAML list
    found = []
    for case, text in zip(CASES, texts, strict=True):
        told = unpacked.sub("$ROOT/pdctl/", words.sub("$PYTHON", text))
        if told != (FOLDER / f"{case.name}.txt").read_text(encoding="utf-8"):
            found.append(case.name)
    return found


def test_the_file_for_a_python_prints_the_same(published: Path, tmp_path: Path) -> None:
    assert differing([sys.executable, "-I", "-S", str(published)], ("python3", str(published)), tmp_path) == []


def test_the_executable_prints_the_same(executable: Path, tmp_path: Path) -> None:
    assert differing([str(executable)], ("python3", str(executable)), tmp_path) == []
