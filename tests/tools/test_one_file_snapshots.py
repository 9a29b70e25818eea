"""Every verb prints the same from one file as from the source tree: the snapshots, run on both builds.

`pytest -n0 -m heavy tests/tools/test_one_file_snapshots.py`: two minutes for each Python that reads pdctl.pyz, and for
the executable its build, which takes several; `PDCTL_BUILD_WORK=DIR` keeps the interpreter's objects in DIR.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.snapshots.cases import CASES, ROOMS, ROOT
from tests.snapshots.said import FOLDER, TOOK, outputs

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]


def differing(command: list[str], shown: tuple[str, ...], folder: Path) -> list[str]:
    """Names of the snapshots it does not print. shown: how its own command lines begin, word by word."""
    cache = folder / "cache"
    texts = outputs(CASES, folder / "home", command, {"XDG_CACHE_HOME": str(cache), "HOME": str(folder / "empty")})
    unpacked = re.compile(rf"{re.escape(str(cache))}/pdctl/[^/\s]+/")
    words = re.compile(r'[",]*\s+(?:- |")?'.join(map(re.escape, shown)))  # in a line, a JSON list, a YAML list
    found = []
    for case, text in zip(CASES, texts, strict=True):
        told = unpacked.sub("$ROOT/pdctl/", words.sub("$PYTHON", text))
        if told != (FOLDER / f"{case.name}.txt").read_text(encoding="utf-8"):
            found.append(case.name)
    return found


def python(version: str) -> str:
    """A CPython of that version: pyenv's, or the one on PATH. Skip the test if there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if kept:
        return str(kept[-1])
    found = shutil.which(f"python{version}")
    if not found or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no CPython {version}, neither in ~/.pyenv nor on PATH")
    return found


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_file_for_a_python_prints_the_same(version: str, published: Path, tmp_path: Path) -> None:
    assert differing([python(version), "-I", "-S", str(published)], ("python3", str(published)), tmp_path) == []


def test_the_executable_prints_the_same(executable: Path, tmp_path: Path) -> None:
    assert differing([str(executable)], ("python3", str(executable)), tmp_path) == []


def test_the_executable_reads_zst_logs(executable: Path, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    for path in (ROOT / ROOMS / "2p1d-missing-ports-info-sgl0522").glob("*.gz"):
        content = zstandard.ZstdCompressor().compress(gzip.decompress(path.read_bytes()))
        (tmp_path / path.with_suffix(".zst").name).write_bytes(content)
    command = [str(executable), "rooms", str(tmp_path), "-o", "json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    kept = (FOLDER / "rooms_2p1d-missing-ports-info-sgl0522_-o_json.txt").read_text(encoding="utf-8")
    said = kept.partition("--- stdout\n")[2].partition("--- stderr\n")[0]
    assert TOOK.sub("TIME", told) == said
