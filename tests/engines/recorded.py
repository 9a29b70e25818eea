"""Excerpts of real logs (tests/data/logs): one line of each kind that stood in the file, machine paths replaced.

The name says what wrote them: `058-` sglang 0.5.8, `0518-`, `0523-`; `router-…`; `own.…` pdctl's engine and router.
"""

from __future__ import annotations

from pathlib import Path

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
FILES = sorted(LOGS.glob("*.log"))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)
