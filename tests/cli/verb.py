"""A verb in this process or in one of its own, over recorded logs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from pdctl.cli.exits import run

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent.parent / "data" / "rooms"
BROKEN = DATA / "2p1d-missing-ports-debug-sgl058"
FAILED, FINE = "5111113946003395278", "6496630583363406345"


def within(
    *argv: str | Path, env: Mapping[str, str] | None = None, folder: Path | None = None, stdin: str | bytes = b""
) -> subprocess.CompletedProcess[str]:
    """`pdctl …` within this process, with an environment, a working directory and a standard input of its own."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(content), "utf-8", write_through=True) for content in (given, b"", b"")]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        for name in () if env is None else list(os.environ):
            patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        if folder is not None:
            patch.chdir(folder)
        with pytest.raises(SystemExit) as caught:
            run([str(word) for word in argv])
    assert isinstance(caught.value.code, int)
    out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, caught.value.code, out, err)


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
