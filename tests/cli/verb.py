"""A verb in this process or in one of its own, over recorded logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from pdctl.cli.exits import run

DATA = Path(__file__).parent.parent / "data" / "rooms"
BROKEN = DATA / "2p1d-missing-ports-debug-sgl058"
FAILED, FINE = "5111113946003395278", "6496630583363406345"


class Verb:
    """`pdctl …` within this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out, self.err = "", ""

    def __call__(self, *argv: str | Path) -> int:
        with pytest.raises(SystemExit) as caught:
            run([str(word) for word in argv])
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code


def shell(*argv: str | Path, cache: Path, stdin: IO[bytes] | int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONUTF8": "1", "XDG_CACHE_HOME": str(cache), "TZ": "UTC"}
    return subprocess.Popen(
        [sys.executable, "-m", "pdctl", *map(str, argv)],
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
