"""What holds of the options of all verbs together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from pdctl.cli.app import VERBS, respelt
from tests.cli.leaves import LEAVES


def short_options() -> dict[str, dict[str, list[str]]]:
    """Short option → the long one it stands for → the verbs where it does."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, command in LEAVES.items():
        for option in command.params:
            if option.param_type_name != "option":
                continue
            (long,) = [name for name in option.opts if name.startswith("--")] or [option.opts[0]]
            for name in (*option.opts, *option.secondary_opts):
                if not name.startswith("--"):
                    found[name][long].append(path)
    return found


def test_one_letter_stands_for_one_option_in_every_verb() -> None:
    found = short_options()
    assert {"-f", "-F", "-o"} <= set(found), "the options were found"
    double = {letter: dict(meanings) for letter, meanings in found.items() if len(meanings) > 1}
    assert not double, f"choose another letter for all but one: {double}"


def test_f_is_still_an_overlay_where_it_was_one(tmp_path: Path) -> None:
    overlay = tmp_path / "site.yaml"
    overlay.write_text("ports: {http: 31000}\n", encoding="utf-8")
    for words in (["-f", str(overlay)], [f"-f{overlay}"]):
        argv = [sys.executable, "-m", "pdctl", "plan", "2p1d", *words, "-o", "json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "31000" in done.stdout, "the overlay was merged"
        assert "an overlay is -F FILE" in done.stderr


def test_f_that_follows_is_left_alone() -> None:
    assert respelt(["logs", "-f", "blue"]) == ["logs", "-f", "blue"]
    assert respelt(["plan", "2p1d", "--set", "x=-f"]) == ["plan", "2p1d", "--set", "x=-f"]


def test_root_help_shows_each_verb_on_one_line_of_80_columns() -> None:
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pdctl", "--help"], env=env, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    for verb in VERBS:
        assert any(line.split() == [verb.name, *verb.help.split()] for line in lines), f"{verb.name}: {verb.help}"
