"""The order of the files, for the four test processes that take the next one as soon as they are free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator

HERE = Path(__file__).parent
DEPLOYMENTS = ("e2e", "switch", "launch")  # their files start whole deployments
LONG = ("engine/model", "engine", "cli", "router", "logs", "fuzz", "doctor")
BESIDE = 3  # files between two that start deployments

# An example may take long because another process had the core: how long one takes says nothing.
settings.register_profile("pdctl", deadline=None)
settings.load_profile("pdctl")

# Idle threads of a pool sleep instead of turning: several processes share the cores. Read when torch is first loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deployments one after the other beside other tests, and what takes long before what does not."""
    paths = list(dict.fromkeys(item.path for item in items))
    deploying = [path for path in paths if _place(path, DEPLOYMENTS) < len(DEPLOYMENTS)]
    others = sorted((path for path in paths if path not in deploying), key=lambda path: _place(path, LONG))
    order: dict[Path, int] = {}
    while deploying or others:
        for path in (*deploying[:1], *others[:BESIDE]):
            order[path] = len(order)
        del deploying[:1], others[:BESIDE]
    items.sort(key=lambda item: order[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed or logged may hold halves of characters, which no process can send to another."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


def _place(path: Path, folders: tuple[str, ...]) -> int:
    inside = path.relative_to(HERE).as_posix()
    return next((n for n, folder in enumerate(folders) if inside.startswith(f"{folder}/")), len(folders))
