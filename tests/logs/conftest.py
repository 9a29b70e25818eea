from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What is remembered stays in the test's own directory."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def real(environ: dict[str, str]):
    """The real logs of a scenario under tests/data/rooms, as a library."""

    def scenario(name: str, **options: object) -> Library:
        return Library(open_logs([str(DATA / "rooms" / name)]), environ=environ, **options)  # type: ignore[arg-type]

    return scenario
