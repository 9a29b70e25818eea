"""pdctl as one executable: which modules go into it, and what it does on a machine without Python.

The build takes minutes: `PDCTL_BUILD_WORK=DIR pytest -n0 -m heavy tests/tools/test_build_executable.py` keeps the
interpreter's objects in DIR. It needs root, for the bare root directory it is run in.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tools.build_executable import ELSEWHERE, _compiled
from tools.one_file.archive import installed, package
from tools.one_file.standard import UNREACHED, closure

ROOT = Path(__file__).parents[2]
# The root is read-only, and only /tmp can be written to.
BARE = (
    'mount --bind "$0" "$0"; mount -t proc proc "$0/proc"; mount -t tmpfs tmp "$0/tmp"; mount -o remount,bind,ro "$0"; '
    'exec env -i HOME=/nowhere COLUMNS=100 TZ=UTC PDCTL_HOME=/tmp/home "$(command -v chroot)" "$0" /pdctl "$@"'
)


def test_modules_are_found_through_imports_of_every_form(tmp_path: Path) -> None:
    files = {
        "first.py": "import os.path\ndef late():\n    from group import member\n",
        "group/__init__.py": "",
        "group/member.py": "from . import sibling\nfrom .deep.down import name\n",
        "group/sibling.py": "",
        "group/unused.py": "",
        "group/deep/__init__.py": "",
        "group/deep/down.py": "import tkinter\n",
        "tkinter/__init__.py": "",
        "encodings/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = closure(tmp_path, {"pdctl/a.py": b"import first\n"})
    assert set(found) == set(files) - {"group/unused.py", "tkinter/__init__.py"}


def test_a_library_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A build in a temporary directory once wrote an executable without the standard library."""
    with pytest.raises(FileNotFoundError, match="has no encodings"):
        closure(tmp_path / "gone", {"pdctl/a.py": b"import json\n"})


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the executable holds CPython 3.11's library")
def test_nothing_is_left_out_that_a_module_imports_when_it_is_loaded() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    ours = {name: text for name, text in package().items() if not name.startswith(ELSEWHERE)}
    found = closure(library, {**ours, **installed()})
    there = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in found}
    mention = re.compile(rf"^(?:import|from) .*\b(?:{'|'.join(map(re.escape, UNREACHED))})\b".encode(), re.MULTILINE)
    lacking: dict[str, list[str]] = {}
    for name, text in found.items():
        if not mention.search(text):
            continue
        for node in ast.parse(text).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            absent = [each for each in names if each in UNREACHED and each not in there]
            if absent:
                lacking[name] = absent
    assert not lacking, f"UNREACHED names what these import at once: {lacking}"


def test_compiled_modules_do_not_depend_on_when_they_were_made() -> None:
    files = {"a.py": b"def f():\n    'what it does'\n", "b.json": b"{}"}
    assert _compiled(files, 0) == _compiled(files, 0)
    assert b"what it does" in _compiled(files, 0)["a.pyc"]
    assert b"what it does" not in _compiled(files, 2)["a.pyc"]
    assert _compiled(files, 2)["b.json"] == b"{}"


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_it_runs_in_a_root_that_holds_nothing_else(executable: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("proc", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(executable, root / "pdctl")
    again = tmp_path / "again"
    command = [sys.executable, "-m", "tools.build_executable", str(again)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=7000)
    assert executable.read_bytes() == again.read_bytes()
    assert again.stat().st_size <= 15_000_000

    def bare(*words: str) -> str:
        argv = ["unshare", "--mount", "sh", "-ec", BARE, str(root), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout

    here = subprocess.run(
        [sys.executable, "-m", "pdctl", "plan", "--tp", "16", "--dp", "8"],
        cwd=ROOT, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert bare("plan", "--tp", "16", "--dp", "8") == here.stdout
    assert "prefill-1  localhost" in bare("plan", "2p1d")
    told = json.loads(bare("self", "check", "-o", "json"))
    assert (told["kind"], told["file"]) == ("executable", "/pdctl")
