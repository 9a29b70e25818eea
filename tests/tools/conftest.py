"""The one-file builds, made once for all tests of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.build_executable import TARGETS, lacking

ROOT = Path(__file__).parents[2]


def built(tool: str, *words: str, timeout: float) -> None:
    command = [sys.executable, "-m", f"tools.{tool}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pdctl.pyz, from what is installed here."""
    out = tmp_path_factory.mktemp("one-file") / "pdctl.pyz"
    built("build_pyz", "--installed", str(out), timeout=120)
    return out


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pdctl.pyz as it is published, from the packages it pins."""
    out = tmp_path_factory.mktemp("one-file") / "pdctl.pyz"
    built("build_pyz", str(out), timeout=600)
    return out


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pdctl without Python. It takes minutes; $PDCTL_BUILD_WORK keeps the interpreter's objects for the next time."""
    return built_executable("x86_64", tmp_path_factory.mktemp("one-file") / "pdctl")


def built_executable(target: str, out: Path) -> Path:
    """Skip where the tools of the build are not installed, and say which."""
    if absent := lacking(TARGETS[target]):
        pytest.skip(f"the build needs what is not here: {', '.join(absent)}")
    kept = os.environ.get("PDCTL_BUILD_WORK")
    work = ["--work", str(Path(kept) / target)] if kept else []
    built("build_executable", "--target", target, *work, str(out), timeout=5400)
    return out
