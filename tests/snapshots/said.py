"""Where snapshots stand, what is run to make them, and what of an output differs from machine to machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.snapshots.cases import ROOT, Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FOLDER = ROOT / "tests" / "snapshots" / "said"
# How long doctor took: its JSON, its JUnit, its last line.
TOOK = re.compile(
    r'(?<="seconds": )[\d.]+|(?<=" time=")[\d.]+(?=">)|(?<=skipped, )[\d.]+ s(?=\))|(?<=unknown, )[\d.]+ s(?=\))'
)


def outputs(
    cases: Sequence[Case], home: Path, command: Sequence[str] = (), more: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """What each prints, as it is kept: exit code, stdout, stderr.

    command: another pdctl than the source tree's, such as a one-file build; more: what it finds in its environment.
    """
    keep = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env |= {"PDCTL_HOME": str(home), "COLUMNS": "100", "TZ": "UTC", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"} | more
    if command:
        done = [_alone(command, case, env) for case in cases]
    else:
        asked = json.dumps([(case.argv, case.stdin) for case in cases])
        answer = subprocess.run(
            [sys.executable, "-m", "tests.snapshots.forked"], input=asked, capture_output=True, text=True,
            env=env, cwd=ROOT, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        done = json.loads(answer.stdout)
    return [written(case, code, out, err, str(home)) for case, (code, out, err) in zip(cases, done, strict=True)]


def _alone(command: Sequence[str], case: Case, env: dict[str, str]) -> tuple[int, str, str]:
    with open(ROOT / case.stdin if case.stdin else os.devnull, "rb") as stdin:
        done = subprocess.run([*command, *case.argv], stdin=stdin, capture_output=True, env=env, cwd=ROOT, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def written(case: Case, code: int, out: str, err: str, home: str) -> str:
    head = f"$ pdctl {shlex.join(case.argv)}" + (f" < {case.stdin}" if case.stdin else "")
    text = f"{head}\nexit code {code}\n--- stdout\n{out}--- stderr\n{err}"
    text = text.replace(home, "$PDCTL_HOME").replace(sys.executable, "$PYTHON").replace(str(ROOT), "$ROOT")
    return TOOK.sub("TIME", text)
