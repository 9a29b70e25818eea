"""The tests themselves: what they share lies in modules of its own."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import SHARED
from tests.project.source_files import read

ROOT = Path(__file__).resolve().parents[2]


def imported(file: Path) -> list[str]:
    """Dotted names, also of what stands inside a function."""
    text = file.read_text(encoding="utf-8")
    if "test_" not in text:
        return []
    return [f"{'.' * one.level}{one.module}.{one.name}" for one in read(text).imports]


def test_no_module_imports_a_test_module() -> None:
    """What two of them need belongs to conftest.py or to a module beside them, named for what it holds."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for name in imported(file)
        if any(part.startswith("test_") for part in name.split(".")[:-1])
    ]
    assert wrong == []


def test_files_that_share_a_process_are_there() -> None:
    """`TOGETHER` of tests/conftest.py names them: a file that was moved would make again what the others have."""
    assert [file for file in SHARED if not (ROOT / file).is_file()] == []
