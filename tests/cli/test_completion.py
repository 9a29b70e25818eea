"""Completion answers from a table; the table must be what the application really takes.

Rewrite it after changing a verb: `PDCTL_UPDATE=1 pytest tests/cli/test_completion.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.cli import completion, completion_table
from tests.cases import for_each
from tests.cli.leaves import LEAVES

TABLE = Path(completion_table.__file__)


def real_options() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for path, command in LEAVES.items():
        names = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
        found[path] = tuple(sorted(name for name in names if name.startswith("--")))
    return found


def test_table_is_current() -> None:
    real = real_options()
    if os.environ.get("PDCTL_UPDATE"):
        head = TABLE.read_text(encoding="utf-8").split("OPTIONS:")[0]
        rows = "".join(
            f'    "{path}": ({"".join(f"{chr(34)}{o}{chr(34)}, " for o in options)}),\n'
            for path, options in real.items()
        )
        TABLE.write_text(f"{head}OPTIONS: dict[str, tuple[str, ...]] = {{\n{rows}}}\n", encoding="utf-8")
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(TABLE)], check=True)
        return
    assert real == completion_table.OPTIONS


def answer(*words: str, home: Path | None = None) -> list[str]:
    env = {**os.environ, "_PDCTL_COMPLETE": "1"}
    if home:
        env["PDCTL_HOME"] = str(home)
    done = subprocess.run([sys.executable, "-m", "pdctl", *words], capture_output=True, text=True, env=env, check=True)
    return done.stdout.split()


def test_verbs_options_and_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "blue").mkdir(parents=True)
    assert "plan" in answer("p")
    assert "--decode-tp" in answer("plan", "--dec")
    assert answer("down", "b", home=tmp_path) == ["blue"]
    assert set(answer("topology", "")) >= {"schema", "check", "show"}
    assert answer("no-such-verb", "x") == []


@for_each("shell", sorted(completion.SCRIPTS))
def test_scripts_name_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    completion.command(shell)
    assert "_PDCTL_COMPLETE" in capsys.readouterr().out


def test_bash_completes_for_real(tmp_path: Path) -> None:
    """Through bash itself: the script is sourced and the function called as readline would."""
    script = (
        'eval "$(python -m pdctl completion bash)"; pdctl() { python -m pdctl "$@"; }; '
        'COMP_WORDS=(pdctl pl); COMP_CWORD=1; _pdctl; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
    assert done.stdout.split() == ["plan"]
