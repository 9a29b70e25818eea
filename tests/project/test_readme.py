"""What the README shows is what the commands print, and the two commands are the ones CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_every_page_it_names_exists() -> None:
    for page in re.findall(r"\]\((docs/[\w.-]+)\)", README):
        assert (ROOT / page).is_file(), page
