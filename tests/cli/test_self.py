"""`pdctl self check`: what this pdctl is and can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl import __version__
from pdctl.launch import installed_parts

ROOT = Path(__file__).parents[2]


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pdctl", "self", "check", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_it_says_what_it_runs_from_and_what_is_there() -> None:
    done = check("-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["kind"], told["file"]) == (__version__, "source", str(ROOT / "pdctl"))
    assert [part["name"] for part in told["parts"]] == ["engine", "router", "zstd", "tls"]
    text = check().stdout
    assert f"pdctl {__version__}, a source tree: {ROOT / 'pdctl'}\n" in text
    assert f"Python {told['python']}" in text


def test_each_missing_part_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_parts, "ENGINE_PARTS", ("json", "no_such_module"))
    gone = ("zstandard", "no_such_module")
    monkeypatch.setattr(installed_parts, "find_spec", lambda name: None if name in gone else object())
    engine, _, zstd, _ = installed_parts.inspect().parts
    assert not engine.present
    assert engine.detail.endswith("lacks no_such_module")
    assert engine.fix == f"{sys.executable} -m pip install -e '{ROOT}[engine]'"
    assert (zstd.present, zstd.fix) == (False, f"{sys.executable} -m pip install zstandard")
