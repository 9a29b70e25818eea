"""The order of the files: those that take long begin, so that none of them is the last one running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
LONG_FIRST = ("e2e", "engine/model", "engine", "switch", "launch", "cli", "router", "logs", "fuzz", "doctor")

# Idle threads of a pool sleep instead of turning: several processes share the cores. Read when torch is first loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path.relative_to(HERE).as_posix()))


def _place(path: str) -> int:
    return next((n for n, folder in enumerate(LONG_FIRST) if path.startswith(f"{folder}/")), len(LONG_FIRST))
