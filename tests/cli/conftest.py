"""What the tests of verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.verb import Verb


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verb:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path / "home"))
    return Verb(capsys)
