"""docs/cli.md is what `--help` says. After a verb changed: `PDCTL_UPDATE=1 pytest tests/cli/test_page.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pdctl.cli.app import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cli.md"
# Prints the help of every command, each behind a form feed and its words.
PRINT = """
import importlib, typer
from pdctl.cli.app import VERBS, functions
from pdctl.cli.usage import build
def show(words, command, parent=None):
    context = command.make_context(words[-1], [], parent=parent, resilient_parsing=True, terminal_width=100)
    print("\\f" + " ".join(words))
    print(command.get_help(context))
    for name, sub in getattr(command, "commands", {}).items() if len(words) > 1 else ():
        show([*words, name], sub, context)
root = typer.main.get_command(build(None))
show(["pdctl"], root)
for verb in VERBS:
    whole = typer.main.get_command(build(verb))
    context = whole.make_context("pdctl", [], resilient_parsing=True, terminal_width=100)
    show(["pdctl", verb.name], whole.commands[verb.name], context)
    for name in filter(None, functions(verb) if "" in functions(verb) else ()):
        group = typer.main.get_command(build(verb, (verb.name, name))).commands[verb.name]
        above = group.make_context(verb.name, [], parent=context, resilient_parsing=True)
        show(["pdctl", verb.name, name], group.commands[name], above)
"""
HEAD = """# The command line

Every verb and its options, as `--help` prints them. Exit codes are the same for all verbs and in every form of output:

| code | means |
|---|---|
| 0 | fine; a list (`rooms`, `logs`, `ls`), whatever is in it; `down`: nothing runs any more, or nothing ran |
| 1 | findings at or above the threshold, an infeasible plan (`plan`, `import`), a launch or a traced room that failed |
| | or is incomplete, no room to list after a death (`rooms`), a log that no dialect reads (`dialect check`) |
| 2 | usage: an option, a code or a file that cannot be or does not exist; a topology that is wrong |
| 3 | a bug of pdctl; a report was written |
| 4 | too little answered to decide, a code was selected that cannot be checked here, the logs do not tell, or the |
| | operating system refused a file or a standard stream |
| 5 | not found: a run, an instance, a room |
| 8 | not ready: still starting at the timeout; of `status` that something is missing, or that the run is over |
| 130, 143 | ended by SIGINT, by SIGTERM: the signal itself |

A path may be a named pipe. It is given up, with exit code 2 or 4, where no process has opened its other end after 5 s,
or the one that has writes nothing for 30 s.
"""


def page() -> str:
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = [HEAD]
    for one in done.stdout.split("\f")[1:]:
        words, _, text = one.partition("\n")
        depth = "##" if len(words.split()) < 3 else "###"
        body = "\n".join(line.rstrip() for line in text.split("  Exit codes: 0 fine")[0].strip("\n").split("\n"))
        parts.append(f"{depth} {words}\n\n```text\n{body.rstrip()}\n```\n")
    return "\n".join(parts)


def test_the_page_is_what_help_says() -> None:
    now = page()
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(now, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == now


def test_every_verb_has_its_section() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [verb.name for verb in VERBS if f"\n## pdctl {verb.name}\n" not in text] == []
