"""doctor in this process, and what it said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli import exits

ROOT = Path(__file__).resolve().parents[2]


class Said:
    """One run in this process: exit code, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: object) -> None:
        self.code = 0
        try:
            exits.run(["doctor", *map(str, argv)])
        except SystemExit as left:
            self.code = int(left.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def codes(self, severity: str = "error") -> list[str]:
        return [one["code"] for one in self.document["findings"] if one["severity"] == severity]
