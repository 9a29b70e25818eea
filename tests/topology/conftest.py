from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a topology: `write(text, name="t.yaml")`; a version and two roles are added unless `bare`."""

    def topology(text: str = "", name: str = "t.yaml", *, bare: bool = False) -> Path:
        body = textwrap.dedent(text)
        if not bare:
            head = "" if "version:" in body else "version: pdctl/v1\n"
            body = head + body + ("" if "roles:" in body else "\nroles: {prefill: {}, decode: {}}\n")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
        return path

    return topology


@pytest.fixture(params=sorted((ROOT / "topologies").glob("*.yaml")), ids=lambda path: path.stem)
def shipped(request: pytest.FixtureRequest) -> Path:
    """Each topology that ships with pdctl."""
    path: Path = request.param
    return path
