"""Every verb's output over fixed files, byte for byte. After a wanted change: `python -m tests.snapshots`."""

from __future__ import annotations

import pytest

from tests.cases import for_each
from tests.snapshots.cases import CASES, Case
from tests.snapshots.said import FOLDER, outputs


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    texts = outputs(CASES, tmp_path_factory.mktemp("home"))
    return {case.name: text for case, text in zip(CASES, texts, strict=True)}


@for_each("case", CASES, ids=[case.name for case in CASES])
def test_it_prints_what_it_printed(case: Case, printed: dict[str, str]) -> None:
    kept = FOLDER / f"{case.name}.txt"
    assert printed[case.name] == kept.read_text(encoding="utf-8")


def test_no_snapshot_is_left_over_and_no_name_stands_twice() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(case.name for case in CASES)
