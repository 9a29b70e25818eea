"""The times of one request as SGLang reports them at its end (ReqTimeStats, 0.5.3 to 0.5.23)."""

from __future__ import annotations

import re
from typing import NamedTuple

from pdctl.engines import numerals

# `name=1.23ms` in sglang 0.5.3 and 0.5.13+, `name(1.23ms)` inside 0.5.8's sums.
_TIME = re.compile(r"(\w+)(?:=|\()([\d.]+)ms")
_SPEED = re.compile(r"transfer_speed=([\d.]+) ?GB/s")
_TOTAL = re.compile(r"transfer_total=([\d.]+) ?MB")
_ENTRY = re.compile(r"entry_time=([\d.]+)")
TRANSFER = "transfer"
# SGLang's field → the part of the room's life, by role.
PARTS = {
    "prefill": {
        "bootstrap_duration": "bootstrap wait", "bootstrap_queue_duration": "bootstrap wait",
        "queue_duration": "queue", "forward_duration": "prefill forward", "transfer_duration": TRANSFER,
    },
    "decode": {
        "prealloc_duration": "prealloc", "prealloc_queue_duration": "prealloc", "bootstrap_duration": "handshake",
        "alloc_wait_duration": "prealloc", "transfer_duration": TRANSFER, "queue_duration": "decode queue",
        "forward_duration": "decode",
    },
}  # fmt: skip


class TimeStats(NamedTuple):
    """`parts`: name and seconds, in order. `entry`: when the request arrived, on the clock of the line's timestamp.

    entry is None before 0.5.13. bytes: of the transfer; speed: its GB/s; None if not reported.
    """

    parts: tuple[tuple[str, float], ...]
    entry: float | None
    bytes: float | None
    speed: float | None

    @property
    def transfer_seconds(self) -> float | None:
        return self.bytes / 1e9 / self.speed if self.bytes and self.speed else None


def read(text: str, role: str) -> TimeStats:
    names = PARTS[role]
    parts = [
        (names[field], milliseconds / 1000)
        for field, length in _TIME.findall(text)
        if field in names and (milliseconds := numerals.real(length)) is not None
    ]
    speed, total = _real(_SPEED, text), _real(_TOTAL, text)
    return TimeStats(tuple(parts), _real(_ENTRY, text), total * 1e6 if total else None, speed or None)


def entry_of(line: bytes) -> float | None:
    """When the request of such a line arrived, epoch seconds; None for another line."""
    return _real(_ENTRY, line.decode("ascii", "replace")) if b" entry_time=" in line else None


def _real(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return numerals.real(found[1]) if found else None
