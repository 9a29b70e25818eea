"""pdctl as one file that a Python reads: built from what is installed here, run with nothing else to import."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.cases import for_each
from tools.one_file.archive import zipped

ROOT = Path(__file__).parents[2]
ROOM = "tests/data/rooms/pdctl-missing-bootstrap-port"


def run(command: list[str], *words: str, **env: str) -> tuple[int, str, str]:
    settings = {"PATH": os.environ["PATH"], "TZ": "UTC", "COLUMNS": "200", "PDCTL_HOME": "/nowhere", **env}
    done = subprocess.run(
        [*command, *words], cwd=ROOT, env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, re.sub(r"(?<=skipped, )[\d.]+ s", "TIME", done.stdout), done.stderr


@cache
def source_tree(*words: str) -> tuple[int, str, str]:
    return run([sys.executable, "-m", "pdctl"], *words, PYTHONPATH=str(ROOT))


def alone(pyz: Path) -> list[str]:
    """No site-packages, no PYTHONPATH, not this directory: only the file and the standard library."""
    return [sys.executable, "-I", "-S", str(pyz)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compiled modules, kept from one test to the next."""
    return str(tmp_path_factory.mktemp("cache"))


@for_each(
    "words",
    [
        ("--version",),
        ("plan", "--tp", "16", "--dp", "8"),
        ("doctor", "--static", "topologies/incidents/swapped-bootstrap-ports.yaml"),
        ("trace-room", "--last-failed", ROOM, "--no-index"),
        ("trace-room", "--last-failed", ROOM, "--no-index", "-o", "html"),
        ("dialect", "flags", "0.5.10"),
        ("explain", "PD201"),
        ("topology", "schema"),
        ("plan", "nowhere.yaml"),
    ],
    ids=" ".join,
)
def test_it_prints_what_the_source_tree_prints(pyz: Path, kept: str, words: tuple[str, ...]) -> None:
    assert run(alone(pyz), *words, XDG_CACHE_HOME=kept) == source_tree(*words)


def python_of(minor: int) -> str:
    """The path of that CPython, on PATH or among pyenv's; "" if neither runs."""
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in filter(None, (shutil.which(name), *map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/{name}"))))):
        # A version manager's stand-in for a Python that is not selected only complains.
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return ""


@pytest.mark.parametrize("minor", [10, 12, 13])
def test_it_prints_the_same_under_other_pythons(pyz: Path, tmp_path: Path, minor: int) -> None:
    """Options with and without a default, arguments, and what the fast reader of command lines leaves to Typer."""
    python = python_of(minor)
    if not python:
        pytest.skip(f"CPython 3.{minor} is not installed")
    for words in (
        ("trace-room", "--last-failed", ROOM, "--no-index"),
        ("launch", "--help"),
        ("launch", "nowhere.yaml", "--set", "router.port=1", "--dry-run"),
    ):
        assert run([python, "-I", "-S", str(pyz)], *words, XDG_CACHE_HOME=str(tmp_path)) == source_tree(*words), words


def test_a_shipped_topology_and_its_checkpoint_come_out_of_the_file(pyz: Path, tmp_path: Path) -> None:
    """A plan needs no weights; the command names the file and the directory they are unpacked to for a launch."""
    _, expected, _ = run([sys.executable, "-m", "pdctl"], "plan", "2p1d", "-o", "shell", PYTHONPATH=str(ROOT))
    code, told, err = run(alone(pyz), "plan", "2p1d", "-o", "shell", XDG_CACHE_HOME=str(tmp_path))
    assert (code, err) == (0, "")
    (checkpoint,) = tmp_path.glob("pdctl/*/checkpoints/tiny")
    assert sorted(path.suffix for path in checkpoint.iterdir()) == [".json"] * 4
    told = told.replace(f"python3 {pyz}", sys.executable).replace(str(checkpoint), str(ROOT / "pdctl/checkpoints/tiny"))
    assert told == expected


def test_it_keeps_compiled_modules_and_works_where_it_cannot(pyz: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    words = ("explain", "--help")  # help loads Typer
    first = run(alone(pyz), *words, **cache)
    kept = {path.name for path in tmp_path.glob(f"pdctl/*/{sys.implementation.cache_tag}/*")}
    assert {"pdctl.cli.explain", "typer", "typer._click.core"} <= kept
    assert run(alone(pyz), *words, **cache) == first
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    nowhere = {"XDG_CACHE_HOME": str(blocked), "TMPDIR": str(blocked)}
    assert run(alone(pyz), *words, **nowhere) == first
    code, out, err = run(alone(pyz), "plan", "2p1d", **nowhere)
    assert (code, out) == (4, "")
    assert err.endswith("fix: set TMPDIR or XDG_CACHE_HOME to a directory that can be written\n"), err


def test_a_launch_names_the_python_that_lacks_the_engine(pyz: Path, tmp_path: Path) -> None:
    """It looks for one that has it, and says in one line how to get one."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    places = {"XDG_CACHE_HOME": str(tmp_path), "PDCTL_HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    code, out, err = run(alone(pyz), "launch", "2p1d", **{**places, "PDCTL_PYTHON": str(python)})
    assert (code, out) == (2, "")
    assert f"{python} does not have the engine: torch, zmq" in err
    fix = next(line for line in err.splitlines() if "fix: " in line)
    assert f"fix: {python} -m pip install torch pyzmq " in fix
    assert fix.endswith(" prometheus-client, or set PDCTL_PYTHON to a Python that has it")


def test_equal_files_give_equal_bytes() -> None:
    files = {"b.py": b"b" * 100, "a/c.json": b"{}", "a.py": b""}
    assert zipped(files) == zipped(dict(reversed(files.items())))


def test_it_knows_what_it_is(pyz: Path, tmp_path: Path) -> None:
    places = {"XDG_CACHE_HOME": str(tmp_path), "PDCTL_PYTHON": sys.executable}
    code, out, err = run(alone(pyz), "self", "check", **places)
    assert (code, err) == (0, "")
    assert f", one file for a Python: {pyz}\n" in out
    assert f"engine  {sys.executable} has what it needs\n" in out
