"""Every file of the package that a page of docs/ or a docstring names is there, and holds the name behind it."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from tests.cases import for_each
from tests.project.defined import ROOT, STEP, names

if TYPE_CHECKING:
    from pathlib import Path

PDCTL = ROOT / "pdctl"
NAMED = re.compile(r"`([\w/]+\.py)(?: [\w.]+)?`")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# `(engine/ipc/channels.py)`, `pdctl/fleet/` in a comment or docstring: with a directory of the package in front.
FOLDERS = "|".join(path.name for path in PDCTL.iterdir() if path.is_dir())
IN_CODE = re.compile(rf"(?<![\w/.-])(?:pdctl/)?((?:{FOLDERS})(?:/\w+)*/\w+\.py)\b")
# SGLang's own files, which pages quote beside ours.
FOREIGN = {"server_args.py", "conn.py", "scheduler.py", "environ.py", "http_server.py"}


def test_the_page_names_many() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Where is …?")[1].split("\n## ")[0]
    assert len(NAMED.findall(table)) > 20


def files(path: str) -> list[Path]:
    """The files a page may mean by `path`: from the root, the package, tools/ or tests/, or from a folder of these."""
    bases = (ROOT, PDCTL, ROOT / "tools", ROOT / "tests")
    found = [base / path for base in bases if (base / path).is_file()]
    return found or [file for file in sources() if file.as_posix().endswith(f"/{path}")]


@cache
def sources() -> list[Path]:
    return [*PDCTL.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]


def gone(text: str) -> list[str]:
    """The files that `text` names and that are not there, and the names it gives that no such file defines."""
    ours = [path for path in dict.fromkeys(NAMED.findall(text)) if path.rpartition("/")[2] not in FOREIGN]
    lost = [path for path in ours if not files(path)]
    steps = [(path, name) for path, name in dict.fromkeys(STEP.findall(text)) if path in ours and path not in lost]
    return lost + [f"{path} {name}" for path, name in steps if not any(name in names(each) for each in files(path))]


@for_each("page", PAGES, ids=lambda page: str(page.name))
def test_every_file_and_name_a_page_names_is_there(page: Path) -> None:
    assert gone(page.read_text(encoding="utf-8")) == [], "no such file, or it does not define that name"


def test_the_pages_name_many_functions() -> None:
    steps = [step for page in PAGES for step in STEP.findall(page.read_text(encoding="utf-8"))]
    assert sum("." in name for _, name in steps) > 200
    assert len(steps) > 400


def test_a_lost_file_method_or_name_is_found() -> None:
    assert gone("`router/dispatch.py Chooser.choose`, `dispatch.py Chooser`, `trace/verdict.py`") == []
    assert gone("`policy.py Chooser.choose`") == ["policy.py"]
    assert gone("`dispatch.py Chooser.chose`, `trace/verdict.py THE_ORDER`") == [
        "dispatch.py Chooser.chose",
        "trace/verdict.py THE_ORDER",
    ]


def test_every_file_a_comment_names_is_there() -> None:
    lost = []
    for source in sorted(PDCTL.rglob("*.py")):
        for path in dict.fromkeys(IN_CODE.findall(source.read_text(encoding="utf-8"))):
            if not (PDCTL / path).is_file():
                lost.append(f"{source.relative_to(ROOT)}: {path}")
    assert lost == []
