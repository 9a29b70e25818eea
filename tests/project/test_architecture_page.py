"""Every file of the package that a page of docs/ or a docstring names is there, and holds the name behind it."""

from __future__ import annotations

import re

from tests.cases import for_each
from tests.project.defined import ROOT

PDCTL = ROOT / "pdctl"
NAMED = re.compile(r"`([\w/]+\.py)(?: (\w+))?`")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# `(engine/cluster/rendezvous.py)`, `pdctl/fleet/` in a comment or docstring: with a directory of the package in front.
FOLDERS = "|".join(path.name for path in PDCTL.iterdir() if path.is_dir())
IN_CODE = re.compile(rf"(?<![\w/.-])(?:pdctl/)?((?:{FOLDERS})(?:/\w+)*/\w+\.py)\b")
# SGLang's own files, which pages quote beside ours.
FOREIGN = {"server_args.py", "conn.py", "scheduler.py", "environ.py", "http_server.py"}


def test_the_page_names_many() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Where is …?")[1].split("\n## ")[0]
    assert len(NAMED.findall(table)) > 20


@for_each("page", PAGES, ids=lambda page: str(page.name))
def test_every_file_a_page_names_is_there(page: object) -> None:
    text = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    gone = []
    for path, name in dict.fromkeys(NAMED.findall(text)):
        if path.rpartition("/")[2] in FOREIGN:
            continue
        bases = (ROOT, PDCTL, ROOT / "tools", ROOT / "tests")
        found = [each for base in bases for each in base.glob(path)] or [
            *PDCTL.glob(f"**/{path}"),
            *(ROOT / "tests").glob(f"**/{path}"),
        ]
        if not found or (
            name and not any(re.search(rf"\b{name}\b", each.read_text(encoding="utf-8")) for each in found)
        ):
            gone.append(f"{path} {name}".strip())
    assert gone == [], "no such file, or nothing of that name in it"


def test_every_file_a_comment_names_is_there() -> None:
    gone = []
    for source in sorted(PDCTL.rglob("*.py")):
        for path in dict.fromkeys(IN_CODE.findall(source.read_text(encoding="utf-8"))):
            if not (PDCTL / path).is_file():
                gone.append(f"{source.relative_to(ROOT)}: {path}")
    assert gone == []
