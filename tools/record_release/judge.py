"""Compare what pdctl says about a recording with what happened, field by field: right, silent, or wrong."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.tracer import Tracer

if TYPE_CHECKING:
    from pathlib import Path

SILENT = {None, "unknown"}
# The wire shows that a page list came, and not whether KV cache was written after it, which the prefill's log may tell.
UNSEEN = ("phase_reached", "handshake", "transfer")


@dataclass(frozen=True, slots=True)
class Said:
    """One field of one room: what happened, and what pdctl says."""

    room: str
    field: str
    happened: str | None
    said: str | None

    @property
    def verdict(self) -> str:
        if self.said == self.happened or self.goes_further:
            return "right"
        return "silent" if self.said in SILENT else "wrong"

    @property
    def goes_further(self) -> bool:
        """Whether the logs tell more than the wire showed."""
        return (self.field, self.happened, self.said) == UNSEEN


def judge(recording: Path) -> list[Said]:
    """Judge every field of every room in a directory with `*.log` or `*.log.gz` and `truth.json`."""
    logs = sorted(str(path) for path in recording.iterdir() if ".log" in path.name)
    tracer = Tracer(Library(open_logs(logs), tz=dt.timezone.utc, index=False))
    found: list[Said] = []
    for room, happened in json.loads((recording / "truth.json").read_text("utf-8"))["rooms"].items():
        told = tracer.trace(int(room))
        said = {
            "prefill_requested": told.prefill_requested,
            "prefill_contacted": told.prefill_contacted,
            "decode": told.decode,
            "outcome": told.outcome.value,
            "phase_reached": told.phase_reached.value if told.phase_reached else None,
            "cause": told.cause.code if told.cause else None,
        }
        found += [Said(room, field, happened[field], value) for field, value in said.items()]
    return found


def keep(recording: Path, out: Path) -> None:
    """Pack a recording for the tests; fields about which pdctl says nothing are listed under `untold`."""
    document: dict[str, Any] = json.loads((recording / "truth.json").read_text("utf-8"))
    for room in document["rooms"].values():
        room["untold"] = []
    for one in judge(recording):
        if one.goes_further:
            document["rooms"][one.room][one.field] = one.said
        elif one.verdict == "silent":
            document["rooms"][one.room]["untold"].append(one.field)
    out.mkdir(parents=True, exist_ok=True)
    (out / "truth.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    for log in recording.glob("*.log"):
        (out / f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes(), 9, mtime=0))
