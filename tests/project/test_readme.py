"""What the README shows is what the commands print, and the two commands are the ones CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_shown_is_the_plan_printed() -> None:
    shown = re.search(r"`pdctl plan --tp 16 --dp 8` prints[^`]*```\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    done = subprocess.run(
        [sys.executable, "-m", "pdctl", "plan", "--tp", "16", "--dp", "8"], capture_output=True, text=True, check=True
    )
    printed = {line.strip() for line in done.stdout.splitlines()}
    missing = {line.strip() for line in shown[1].splitlines()} - printed - {"…"}
    assert not missing


def test_the_two_commands() -> None:
    assert "pip install -e '.[engine]' && pdctl launch topologies/2p1d.yaml" in README
    assert "pip install -e '.[engine,test]' && pytest" in README


@for_each("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_page_it_names_exists(page: str) -> None:
    """Links inside docs/ are checked where the site is built (`mkdocs build --strict`)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")]
    assert [target for target in named if not (ROOT / target).exists()] == []
