"""Where snapshots stand, what is run to make them, and what of an output differs from machine to machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.snapshots.cases import ROOT, Case

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOLDER = ROOT / "tests" / "snapshots" / "said"
# How long doctor took: its JSON, its JUnit, its last line.
TOOK = re.compile(
    r'(?<="seconds": )[\d.]+|(?<=" time=")[\d.]+(?=">)|(?<=skipped, )[\d.]+ s(?=\))|(?<=unknown, )[\d.]+ s(?=\))'
)
COMMAND = os.environ.get("PDCTL_TEST_COMMAND", "")
"""Another pdctl to hold against the snapshots, such as a one-file build; "": the source tree's."""


def outputs(cases: Sequence[Case], home: Path) -> list[str]:
    """What each prints, as it is kept: exit code, stdout, stderr."""
    keep = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env |= {"PDCTL_HOME": str(home), "COLUMNS": "100", "TZ": "UTC", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    if COMMAND:
        done = [_alone(shlex.split(COMMAND), case, env) for case in cases]
    else:
        asked = json.dumps([(case.argv, case.stdin) for case in cases])
        answer = subprocess.run(
            [sys.executable, "-m", "tests.snapshots.forked"], input=asked, capture_output=True, text=True,
            env=env, cwd=ROOT, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        done = json.loads(answer.stdout)
    return [written(case, code, out, err, str(home)) for case, (code, out, err) in zip(cases, done, strict=True)]


def _alone(command: list[str], case: Case, env: dict[str, str]) -> tuple[int, str, str]:
    with open(ROOT / case.stdin if case.stdin else os.devnull, "rb") as stdin:
        done = subprocess.run([*command, *case.argv], stdin=stdin, capture_output=True, env=env, cwd=ROOT, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def written(case: Case, code: int, out: str, err: str, home: str) -> str:
    head = f"$ pdctl {shlex.join(case.argv)}" + (f" < {case.stdin}" if case.stdin else "")
    text = f"{head}\nexit code {code}\n--- stdout\n{out}--- stderr\n{err}"
    text = text.replace(home, "$PDCTL_HOME").replace(str(ROOT), "$ROOT").replace(sys.executable, "$PYTHON")
    return TOOK.sub("TIME", text)
